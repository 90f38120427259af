"""A model's weights in one safetensors file, by the model's own names: without optimizer and position."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from runner.base.errors import UsageError
from runner.training.checkpoint.shards import write


def read_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a file, one at a time, in host memory.

    Raises:
        UsageError: it cannot be read, or is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dict
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"--weights: {path} cannot be read as safetensors: {error}",
            fix="name a file that `checkpoint export` has written",
        ) from None


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write a file, under another name first.

    Raises:
        UsageError: it exists already.
        OSError: it cannot be written.
    """
    if path.exists():
        raise UsageError(f"{path} exists already", fix="name another file, or remove it")
    temporary = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(temporary, weights)
        os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
