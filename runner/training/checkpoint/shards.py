"""The tensors of a checkpoint: full in one safetensors file, or sharded, one file per rank.

A file of shards says in its metadata where each begins in its tensor. Names and metadata are those of torch's
``torch.distributed.checkpoint.hf_storage``, which wrote earlier checkpoints. That module is in torch 2.9 and newer only and
changes between versions, so nothing here needs it: what one torch has written, any other reads.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runner.base.errors import UsageError
from runner.training.checkpoint.damage import damaged

FULL = "model-00001-of-00001.safetensors"
_WHERE, _OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"

# What safetensors calls torch's types. Older torches lack some; torch 2.4 lacks float8_e8m0fnu.
_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class Shard:
    """A shard of a tensor in a file: where it begins in the tensor, and its shape."""

    path: Path
    name: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def place(self) -> tuple[slice, ...]:
        """Its index in the tensor."""
        return tuple(slice(at, at + size) for at, size in zip(self.offsets, self.shape, strict=True))


def path_of(folder: Path, rank: int) -> Path:
    """The file of a rank's shards."""
    return folder / f"shard-{rank + 1:05d}-{FULL}"


def write(path: Path, tensors: Mapping[str, Tensor], offsets: Mapping[str, Sequence[int]] | None = None) -> None:
    """Write a file, and flush it to disk.

    Args:
        offsets: where each begins in its tensor, if they are shards.

    Raises:
        OSError: it cannot be written.
        UsageError: safetensors has no such type.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file  # which copies nothing, unlike save()

    metadata = {"format": "pt"}
    if offsets is not None:
        where = {name: {_OFFSETS: list(offset)} for name, offset in offsets.items()}
        metadata |= {_WHERE: json.dumps(where), "DCP_VERSION": "1.0"}
    try:
        save_file(_separate(tensors), path, metadata)
    except KeyError as error:  # a type
        name = next(name for name, tensor in tensors.items() if tensor.dtype == error.args[0])
        raise UsageError(
            f"{name} is of {error}, which safetensors cannot hold", fix="have the model's state in another type"
        ) from None
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))  # the system's error is in the text alone
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read_full(folder: Path) -> dict[str, Tensor]:
    """All tensors, in host memory, also if several ranks wrote them.

    Raises:
        UsageError: as in ``shards_in``.
    """
    shards = shards_in(folder)
    full: dict[str, Tensor] = {}
    for path, own in by_file((shard, shard) for same in shards.values() for shard in same).items():
        with opened(path) as file:
            for shard in own:
                tensor, shape = file.get_tensor(shard.name), shape_of(shards[shard.name])
                if shard.shape == shape:
                    full[shard.name] = tensor
                    continue
                if shard.name not in full:
                    full[shard.name] = torch.empty(shape, dtype=shard.dtype)  # which the shards fill
                full[shard.name][shard.place].copy_(tensor)
    return full


def shapes_in(folder: Path) -> Shapes:
    """The full shape and the type of each tensor, by name.

    Raises:
        UsageError: as in ``shards_in``.
    """
    return {name: (shape_of(shards), shards[0].dtype) for name, shards in shards_in(folder).items()}


def shards_in(folder: Path) -> dict[str, list[Shard]]:
    """The shards of each tensor, by name, which are all of it.

    Raises:
        DamagedError: a file is damaged, or one is missing in between.
        UsageError: this torch lacks a type.
    """
    full = folder / FULL
    shards = defaultdict(list)
    for path in [full] if full.is_file() else sorted(folder.glob(f"shard-*-{FULL}")):
        with opened(path) as file:
            where = json.loads((file.metadata() or {}).get(_WHERE, "{}"))
            for name in file.keys():  # noqa: SIM118 - a safetensors file, which cannot be iterated over
                found = file.get_slice(name)
                shape = tuple(found.get_shape())
                offsets = tuple(where[name][_OFFSETS]) if where else (0,) * len(shape)
                if len(offsets) != len(shape):
                    raise ValueError(f"{name} of shape {shape} is at {offsets}")
                shards[name].append(Shard(path, name, offsets, shape, _type_of(found.get_dtype(), name, path)))
    for name, own in shards.items():
        if len({(len(shard.shape), shard.dtype) for shard in own}) > 1 or not _are_complete(own):
            raise damaged(folder, f"the shards of {name} do not fit together")
    return dict(shards)


def shape_of(shards: Sequence[Shard]) -> tuple[int, ...]:
    """The shape of the tensor that has these shards."""
    return tuple(max(place.stop for place in places) for places in zip(*(shard.place for shard in shards), strict=True))


def by_file(items: Iterable[tuple[Shard, Any]]) -> dict[Path, list[Any]]:
    """What belongs to shards, by the files that have these, so that each is opened once."""
    files = defaultdict(list)
    for shard, item in items:
        files[shard.path].append(item)
    return files


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file of tensors, of which only what is asked for is read.

    Raises:
        DamagedError: it is none.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise damaged(path.parent, f"{path.name}: {error}") from None


def _are_complete(shards: Sequence[Shard]) -> bool:
    """Whether they are all of a tensor, and nothing twice: it is cut along all their edges, and what each has is counted."""
    axes = zip(*(shard.place for shard in shards), strict=True)
    cuts = [sorted({0, *(edge for span in axis for edge in (span.start, span.stop))}) for axis in axes]
    cells = [{edge: number for number, edge in enumerate(cut)} for cut in cuts]
    counts = torch.zeros([len(cut) - 1 for cut in cuts], dtype=torch.int32)
    for shard in shards:
        spans = zip(cells, shard.place, strict=True)
        counts[tuple(slice(cell[span.start], cell[span.stop]) for cell, span in spans)] += 1
    return bool((counts == 1).all())


def _type_of(kind: str, name: str, path: Path) -> torch.dtype:
    dtype = getattr(torch, _TYPES.get(kind, kind), None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"{path}: {name} is of {kind}, which torch {torch.__version__} lacks", fix="take a newer torch"
        )
    return dtype


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: in host memory, contiguous, and no two in one storage, as tied weights are."""
    storages = set()
    separate = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage().data_ptr()
        separate[name] = own.clone() if own.numel() and storage in storages else own
        storages.add(storage)
    return separate
