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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from runner.base.errors import UsageError
from runner.training.checkpoint.damage import opened
from runner.training.checkpoint.shard_index import FULL, OFFSETS, WHERE, Index, index_of, path_of

Region = tuple[
    str, Sequence[int], Sequence[int], Tensor
]  # a tensor's name, where a part of it begins, its shape, and what to read it into


def write(path: Path, tensors: Mapping[str, Tensor], offsets: Mapping[str, Sequence[int]] | None = None) -> None:
    """Write a file, readable to whom the umask says, and flush it to disk.

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
        where = {name: {OFFSETS: list(offset)} for name, offset in offsets.items()}
        metadata |= {WHERE: json.dumps(where), "DCP_VERSION": "1.0"}
    try:
        path.touch()  # which obeys the umask, and safetensors does not (0.8)
        mode = path.stat().st_mode
        save_file(_separate(tensors), path, metadata)
        if path.stat().st_mode != mode:
            path.chmod(mode)
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
        UsageError: as in ``index_of``.
    """
    index = index_of(folder)
    if (folder / FULL).is_file():
        with opened(folder / FULL) as file:
            return {name: file.get_tensor(name) for name in index}
    full = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in index.items()}
    read_into(folder, index, ((name, [0] * len(one.shape), one.shape, full[name]) for name, one in index.items()))
    return full


def read_into(folder: Path, index: Index, regions: Iterable[Region]) -> None:
    """Read parts of tensors. Opens only the files that have them, each once.

    Raises:
        DamagedError: a file is damaged or missing.
    """
    files = defaultdict(list)
    for name, offsets, lengths, target in regions:
        for number, there, here in index[name].overlapping(offsets, lengths):
            files[number].append((name, there, target[here]))
    for number, own in sorted(files.items()):
        with opened(path_of(folder, number - 1)) as file:
            for name, there, target in own:
                target.copy_(file.get_slice(name)[there])


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
