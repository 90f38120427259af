"""An index of the tensors' parts in a checkpoint's files: rank 0 reads it once; it is small enough to be sent to all ranks."""

from __future__ import annotations

import itertools
import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch

from runner.base.errors import UsageError
from runner.training.checkpoint.file_errors import damaged, telling_damage

FULL = "model-00001-of-00001.safetensors"
WHERE, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"

# What safetensors calls torch's types, by their kinds. Older torches lack some; torch 2.4 lacks float8_e8m0fnu.
_KINDS = {"U": "uint", "I": "int", "F": "float"}
_TYPES = {
    **{f"{letter}{bits}": f"{name}{bits}" for letter, name in _KINDS.items() for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
Place = tuple[slice, ...]


class Stored(NamedTuple):
    """The place of a tensor in a checkpoint.

    Attributes:
        kind: safetensors' name of its type.
        rows: its shards, one row each: the number of the file, where it begins in the tensor, and its shape. The differences
            between rows are compressed, so that 10,000 even shards take some KB, and not 400.
    """

    shape: tuple[int, ...]
    kind: str
    rows: bytes

    @property
    def dtype(self) -> torch.dtype:
        """torch's type."""
        dtype: torch.dtype = getattr(torch, _TYPES[self.kind])
        return dtype

    def overlapping(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[int, Place, Place]]:
        """The shards that have something of a part of the tensor: the number of the file, the place in the shard, and in the part."""
        base, size = numpy.array([offsets, lengths], numpy.int64)
        rows = numpy.frombuffer(zlib.decompress(self.rows), numpy.int64).reshape(-1, 1 + 2 * len(self.shape)).cumsum(0)
        begins, sizes = numpy.split(rows[:, 1:], 2, axis=1)
        first, last = numpy.maximum(begins, base), numpy.minimum(begins + sizes, base + size)
        for row in numpy.flatnonzero((first < last).all(axis=1)):
            there, here = (
                tuple(map(slice, (first[row] - start).tolist(), (last[row] - start).tolist()))
                for start in (begins[row], base)
            )
            yield int(rows[row, 0]), there, here


Index = dict[str, Stored]


def path_of(folder: Path, rank: int) -> Path:
    """The file of a rank's shards; of rank -1 the one that has full tensors."""
    return folder / (f"shard-{rank + 1:05d}-{FULL}" if rank >= 0 else FULL)


def index_of(folder: Path) -> Index:
    """Read where each tensor is, by its name. Only the headers of the files are read.

    Raises:
        DamagedError: a file is damaged, or one is missing in between.
        UsageError: this torch lacks a type.
    """
    forms: dict[str, tuple[str, int]] = {}  # each tensor's type and dimensions
    tables: dict[str, array[int]] = {}
    full = folder / FULL
    for path in [full] if full.is_file() else sorted(folder.glob(f"shard-*-{FULL}")):
        with telling_damage(path):
            number = 0 if path == full else int(path.name.split("-")[1])
            header = _header(path)
            where = json.loads(header.pop("__metadata__", {}).get(WHERE, "{}"))
            for name, entry in header.items():
                kind, shape = entry["dtype"], entry["shape"]
                offsets = where[name][OFFSETS] if where else [0] * len(shape)
                if len(offsets) != len(shape):
                    raise ValueError(f"{name} of shape {tuple(shape)} is at {tuple(offsets)}")
                if not hasattr(torch, _TYPES.get(kind, "")):
                    what = f"{path}: {name} is of {kind}, which torch {torch.__version__} lacks"
                    raise UsageError(what, fix="take a newer torch")
                if name not in forms:
                    forms[name], tables[name] = (kind, len(shape)), array("q")
                if forms[name] != (kind, len(shape)):
                    raise _unfit(folder, name)
                tables[name].extend((number, *offsets, *shape))
    return {
        name: _stored(folder, name, kind, tables.pop(name), dimensions) for name, (kind, dimensions) in forms.items()
    }


def shapes_of(index: Index) -> Shapes:
    """The full shape and the type of each tensor, by name."""
    return {name: (one.shape, one.dtype) for name, one in index.items()}


def _header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file. Its library takes 40 ms for the shapes of 900 tensors, which is long for 10,000 files."""
    there = path.stat().st_size
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= there - 8:
            raise ValueError("it has no header")
        header: dict[str, Any] = json.loads(file.read(size))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if 8 + size + max(ends, default=0) != there:
        raise ValueError(f"it has {there} bytes, not {8 + size + max(ends, default=0)}")
    return header


def _stored(folder: Path, name: str, kind: str, table: array[int], dimensions: int) -> Stored:
    rows = numpy.frombuffer(table, numpy.int64).reshape(-1, 1 + 2 * dimensions)
    begins, sizes = numpy.split(rows[:, 1:], 2, axis=1)
    if not are_complete(begins, begins + sizes):
        raise _unfit(folder, name)
    shape = tuple((begins + sizes).max(axis=0).tolist())
    return Stored(shape, kind, zlib.compress(numpy.diff(rows, axis=0, prepend=0).tobytes(), 1))


def are_complete(begins: Any, ends: Any) -> bool:
    """Return whether shards cover a tensor, and no cell twice.

    All edges of shards cut the tensor into cells. Each shard marks its corners, and the sums of the marks count the shards of each cell.

    Args:
        begins: [shards, dimensions].
        ends: the same.
    """
    if not begins.shape[1]:
        return len(begins) == 1
    cuts = [numpy.unique([0, *axis]) for axis in numpy.concatenate([begins, ends]).T]
    places = [
        [numpy.searchsorted(cut, axis) for cut, axis in zip(cuts, edges.T, strict=True)] for edges in (begins, ends)
    ]
    counts = numpy.zeros([len(cut) for cut in cuts], numpy.int64)
    for corner in itertools.product((0, 1), repeat=len(cuts)):
        numpy.add.at(counts, tuple(places[end][axis] for axis, end in enumerate(corner)), (-1) ** sum(corner))
    for axis in range(len(cuts)):
        counts = counts.cumsum(axis)
    return bool((counts[(slice(-1),) * len(cuts)] == 1).all())


def _unfit(folder: Path, name: str) -> UsageError:
    return damaged(folder, f"the shards of {name} do not fit together")
