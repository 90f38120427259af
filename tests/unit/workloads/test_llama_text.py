"""The text that the Llama workload learns from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runner.base.errors import UsageError
from workloads.data.text import standard_library, windows


def test_windows_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    train, test = windows(str(path), 9)
    assert len(train) == (190 - 1) // 9
    assert len(test) == 1
    inputs, targets = train[1]
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == list(range(9, 18))
    assert targets.tolist() == list(range(10, 19))
    assert test[0][0].tolist() == list(range(190, 199))
    inputs, targets = train[[0, 2]]
    assert inputs[:, 0].tolist() == [0, 18]
    assert targets.is_contiguous()


def test_the_standard_library_is_text_without_its_tests() -> None:
    text = standard_library()
    assert text.dtype == torch.uint8
    assert len(text) > 2**22
    assert bytes(text[:200].tolist()).isascii()
    content = text.numpy().tobytes()
    assert b"class JSONDecoder" in content
    assert b"import pip._vendor" not in content
    train, test = windows("stdlib", 128)
    assert len(test) == pytest.approx(len(train) / 19, rel=0.01)


def test_synthetic_text_has_something_to_learn() -> None:
    train, _ = windows("synthetic", 64)
    assert torch.equal(train[0][0], windows("synthetic", 64)[0][0][0])
    words = {bytes(word) for word in train[list(range(len(train)))][0].view(-1, 8).tolist()}
    assert len(words) == 64


@pytest.mark.parametrize(
    ("source", "length", "expected"),
    [
        ("nowhere.txt", 8, "nowhere.txt cannot be read (No such file or directory); name a text file, stdlib or"),
        (".", 8, ". cannot be read (Is a directory); name a text file"),
        ("short.txt", 5, "short.txt has 100 bytes, whose last 5 % (5), the test's, are less than one window of 5 + 1;"),
        ("empty.txt", 5, "empty.txt has 0 bytes, whose last 5 % (0)"),
    ],
)
def test_text_that_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, length: int, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("x" * 100)
    Path("empty.txt").touch()
    with pytest.raises(UsageError) as raised:
        windows(source, length)
    assert str(raised.value).startswith(expected)
    assert "\n" not in str(raised.value)
