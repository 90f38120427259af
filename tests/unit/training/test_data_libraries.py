"""The recipes of docs/train/data.md for the libraries that people keep their data with."""

from __future__ import annotations

import io
import itertools
import json
import re
import tarfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from runner.parallel.json_codec import encode
from runner.training.data.source import source_of
from tests.pages import DOCS
from tests.unit.training.test_streams_of_data import stream

pytestmark = pytest.mark.filterwarnings("ignore")  # of these libraries

FILES, EACH = 4, 6


def recipe(heading: str) -> str:
    """The code of a section."""
    section = re.split(r"^#+ ", (DOCS / "train" / "data.md").read_text(), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(heading))
    code = "\n".join(line for line in text.splitlines() if line.startswith("    ") or not line)
    return textwrap.dedent(code)


def seen(name: str, code: str, given: dict[str, Any], workers: int) -> tuple[list[list[int]], Any]:
    """What two ranks read of a stream in an epoch, and the last one's state."""
    ranks = []
    for rank in range(2):
        names = given | {"run": SimpleNamespace(data_rank=rank, data_size=2), "itertools": itertools}
        exec(code, names)
        task: Any = SimpleNamespace(train_data=names["stream"])
        source = source_of(task)
        assert source.is_stream
        assert source.shards_itself
        feed = stream(source.data, rank, 2, 3, workers, shards_itself=source.shards_itself)
        batches = [batch.value for batch in feed.batches(0, 0)]
        ranks.append([int(one) for batch in batches for one in (batch[name] if isinstance(batch, dict) else batch[1])])
    return ranks, feed.state


@pytest.mark.parametrize("workers", [0, 2])
def test_hugging_face_data_is_split_by_rank_and_worker(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    from datasets import load_dataset

    for file in range(FILES):
        lines = [{"x": [0.5], "number": number} for number in range(file * EACH, (file + 1) * EACH)]
        (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = sorted(map(str, tmp_path.glob("*.jsonl")))
    code = recipe("Hugging Face datasets").replace('split="train"', f'split="train", cache_dir={str(tmp_path / "c")!r}')
    (one, other), state = seen("number", code, {"load_dataset": load_dataset, "files": files}, workers)
    assert sorted(one + other) == list(range(FILES * EACH))
    assert len(one) == len(other)
    json.dumps(encode(state, "state", {}))


@pytest.mark.parametrize("workers", [0, 2])
def test_web_datasets_are_split_by_rank_and_worker(workers: int, tmp_path: Path) -> None:
    shards = []
    for file in range(FILES):
        shards.append(str(tmp_path / f"{file}.tar"))
        with tarfile.open(shards[-1], "w") as archive:
            for number in range(file * EACH, (file + 1) * EACH):
                array = io.BytesIO()
                numpy.save(array, numpy.zeros(3, dtype=numpy.float32))
                for name, content in (("input.npy", array.getvalue()), ("target.cls", str(number).encode())):
                    entry = tarfile.TarInfo(f"{number:04}.{name}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
    (one, other), _ = seen("", recipe("WebDataset"), {"shards": shards}, workers)
    assert sorted(one + other) == list(range(FILES * EACH))
    assert len(one) == len(other)
