"""Bytes as tokens: windows of a text that is held once, as bytes. The vocabulary is 256."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from runner.base.errors import UsageError

VOCABULARY = 256
_TEST_SHARE = 20  # one 20th, the text's end, is for the test
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}


class Windows(TensorDataset):
    """Samples (inputs, targets), [length] int64 each: a window and the same one byte later. They do not overlap.

    An index may be a list of them: (inputs, targets) are then [batch, length].
    """

    def __init__(self, text: Tensor, length: int) -> None:
        """``text`` is [n] uint8, n > length."""
        super().__init__(text.unfold(0, length + 1, length))  # a view

    def __getitem__(self, index: int | list[int]) -> tuple[Tensor, Tensor]:
        windows = self.tensors[0][index].long()
        return windows[..., :-1].contiguous(), windows[..., 1:].contiguous()

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        """The samples of a batch, read at once: torch's loader asks for them so."""
        return list(zip(*self[indices], strict=True))


def windows(source: str, length: int) -> tuple[Windows, Windows]:
    """Train and test windows of ``length`` bytes of a source: stdlib, synthetic, or a file's path.

    Raises:
        UsageError: the file cannot be read, or the text is shorter than it has to be. Raised where it is so: on this rank.
    """
    text = SOURCES[source]() if source in SOURCES else _file(Path(source))
    cut = len(text) - len(text) // _TEST_SHARE
    if len(text) - cut <= length:
        raise UsageError(
            f"{source} has {len(text):,} bytes, whose last 5 % ({len(text) - cut:,}), the test's, are less than one "
            f"window of {length:,} + 1",
            fix="take a longer text or shorter windows",
        )
    return Windows(text[:cut], length), Windows(text[cut:], length)


def standard_library() -> Tensor:
    """The .py files of this Python's standard library, one after another in the order of their paths: [n] uint8."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = [path.relative_to(root) for path in root.rglob("*.py")]
    paths = sorted(path for path in paths if not _NOT_LIBRARY.intersection(path.parts))
    if not paths:
        raise UsageError(f"{root} holds no .py files of Python's standard library", fix="name a text file")
    return _as_tensor(b"".join((root / path).read_bytes() for path in paths))


def synthetic() -> Tensor:
    """1 MiB of 64 words of 8 random bytes, drawn at random: [n] uint8. What can be learned is 6 / 8 bits per byte."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(VOCABULARY, (64, 8), generator=generator, dtype=torch.uint8)
    return words[torch.randint(64, (2**17,), generator=generator)].flatten()


SOURCES: dict[str, Callable[[], Tensor]] = {"stdlib": standard_library, "synthetic": synthetic}


def _file(path: Path) -> Tensor:
    try:
        return _as_tensor(path.read_bytes())
    except OSError as error:
        known = " or ".join(SOURCES)
        raise UsageError(f"{path} cannot be read ({error.strerror})", fix=f"name a text file, {known}") from None


def _as_tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
