"""The tensors of a checkpoint: whole in one safetensors file, or in shards, one file per rank.

A file of shards says in its metadata where each shard begins in its tensor. Names and metadata are those of torch's
``torch.distributed.checkpoint.hf_storage``, which wrote earlier checkpoints. That module changes between versions, and torch before
2.9 lacks it. So only torch's planner is used, which knows what each rank has of a DTensor and divides the writing of replicas.
Its import takes 0.8 s (DTensor, sympy), which a job without shards is spared.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from runner.base.errors import UsageError
from runner.training.checkpoint.file_errors import damaged, opened
from runner.training.checkpoint.shard_index import FULL, OFFSETS, WHERE, Index, index_of, path_of
from runner.training.run import Run


class Piece(NamedTuple):
    """A part of a tensor, or all of it."""

    name: str
    offsets: Sequence[int]
    tensor: Tensor


def write_part(folder: Path, tensors: Mapping[str, Tensor], run: Run | None = None, group: Any = None) -> list[Path]:
    """Write this rank's part of the tensors. Returns the files: none if other ranks write all that this rank has.

    Args:
        run: makes the call collective, with DTensors; without it this rank writes all tensors.
        group: a process group of all ranks, for a thread.

    Raises:
        OSError: a file cannot be written.
        UsageError: safetensors has no such type.
    """
    if run is None:
        write(folder / FULL, tensors)
        return [folder / FULL]
    own = _share(run, tensors, group)
    if not own:
        return []
    path = path_of(folder, run.rank)
    write(path, {piece.name: piece.tensor for piece in own}, {piece.name: piece.offsets for piece in own})
    return [path]


def write(path: Path, tensors: Mapping[str, Tensor], offsets: Mapping[str, Sequence[int]] | None = None) -> None:
    """Write a file with the permissions of the umask, and flush it to disk.

    Args:
        offsets: where each shard begins in its tensor; None for whole tensors.

    Raises:
        OSError: the file cannot be written.
        UsageError: safetensors has no such type.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file  # copies nothing, unlike save()

    metadata = {"format": "pt"}
    if offsets is not None:
        where = {name: {OFFSETS: list(offset)} for name, offset in offsets.items()}
        metadata |= {WHERE: json.dumps(where), "DCP_VERSION": "1.0"}
    try:
        path.touch()  # obeys the umask, unlike safetensors 0.8
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
    """Return all tensors, in host memory, also if several ranks wrote them. Called on one rank.

    Raises:
        DamagedError: a file is damaged, or a shard is missing.
        UsageError: this torch lacks a type.
    """
    index = index_of(folder)
    if (folder / FULL).is_file():
        with opened(folder / FULL) as file:
            return {name: file.get_tensor(name) for name in index}
    full = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in index.items()}
    _fill(folder, index, (Piece(name, [0] * tensor.dim(), tensor) for name, tensor in full.items()))
    return full


def read_shards(folder: Path, index: Index, into: Mapping[str, Tensor]) -> None:
    """Fill this rank's shards of the tensors, also if they were sharded differently. Opens only the files that have them.

    Raises:
        DamagedError: a file is damaged or missing.
    """
    for name, tensor in into.items():
        found = index[name].shape if name in index else None
        if found != tuple(tensor.shape):  # for example because the last file is missing
            raise damaged(folder, f"of {name} there is {found}, and not {tuple(tensor.shape)}")
    planner = _planner(into)
    _fill(folder, index, _pieces(planner, planner.create_local_plan()))


def _fill(folder: Path, index: Index, pieces: Iterable[Piece]) -> None:
    """Read pieces of tensors. Opens only the files that have them, each once."""
    files = defaultdict(list)
    for piece in pieces:
        for number, there, here in index[piece.name].overlapping(piece.offsets, piece.tensor.shape):
            files[number].append((piece.name, there, piece.tensor[here]))
    for number, own in sorted(files.items()):
        with opened(path_of(folder, number - 1)) as file:
            for name, there, target in own:
                target.copy_(file.get_slice(name)[there])


def _share(run: Run, tensors: Mapping[str, Tensor], group: Any) -> list[Piece]:
    """Return the pieces that this rank writes. One rank writes what several ranks have. Collective."""
    planner = _planner(tensors)
    plan = planner.create_local_plan()
    plans = run.gather(plan, group)
    names = run.scatter(plans and [_names(one) for one in planner.create_global_plan(plans)[0]], group)
    assert len(names) == len(set(names))  # a rank has one piece of each tensor
    return [piece for piece in _pieces(planner, plan) if piece.name in names]


def _planner(tensors: Mapping[str, Tensor]) -> Any:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=True)
    return planner


def _names(plan: Any) -> list[str]:
    return [item.index.fqn for item in plan.items]


def _pieces(planner: Any, plan: Any) -> Iterator[Piece]:
    """Yield what this rank has of each tensor: views, so that a piece can be filled."""
    for item in plan.items:
        yield Piece(item.index.fqn, item.tensor_data.chunk.offsets, planner.resolve_data(item).detach())


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: in host memory, contiguous, and no two in one storage. Tied weights share one."""
    storages = set()
    separate = {}
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage().data_ptr()
        separate[name] = own.clone() if own.numel() and storage in storages else own
        storages.add(storage)
    return separate


def read_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a file, one at a time, in host memory.

    Raises:
        UsageError: it cannot be read, or is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # a file cannot be iterated over
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
