"""Restoring a checkpoint: which one is taken, and how its state comes to all ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.base.errors import UsageError
from runner.parallel.state import StateDict, copy_shard
from runner.parallel.trainer import Trainer
from runner.training.checkpoint import checkpoint_folder, resume, shards
from runner.training.checkpoint.checkpoint_folder import MANIFEST, Saved, Sums
from runner.training.checkpoint.file_errors import DamagedError
from runner.training.checkpoint.shard_index import Index, index_of, shapes_of
from runner.training.run import Run
from runner.training.settings import AUTO, Settings


def restore(
    run: Run, trainer: Trainer, options: Settings, settings: dict[str, Any], *, goes_on: bool = True
) -> tuple[Saved | None, list[str]]:
    """Load the checkpoint that the options name, if any. Collective.

    Args:
        settings: of this run, as in ``resume.settings_of``.
        goes_on: the training does, so the settings have to fit.

    Returns:
        Its content, and the settings that have changed since.

    Raises:
        UsageError: it does not exist, is damaged, or does not fit model, optimizer or data.
    """
    if options.resume is None:
        return None, []
    candidates = run.on_main(lambda: _candidates(options))
    for path in candidates:
        try:
            return _load(run, trainer, path, settings, goes_on=goes_on)
        except DamagedError as error:
            if path == candidates[-1]:
                raise
            run.print(f"skipped: {error.message}")
    run.print(f"no checkpoint in {options.checkpoint_dir} yet: starting from the beginning")
    return None, []


def _load(
    run: Run, trainer: Trainer, path: Path, settings: dict[str, Any], *, goes_on: bool
) -> tuple[Saved, list[str]]:
    """Load a checkpoint; nothing of it if it is damaged. Collective."""
    full: dict[str, Tensor] = {}  # filled on rank 0 if the ranks have no shards to read
    here = trainer.shapes()
    states: list[Any] | None = None  # the ranks' places in the data, on rank 0
    sums: Sums = {}  # of all files, on rank 0

    def read() -> tuple[Saved, bool]:
        nonlocal states, sums
        saved, sums = checkpoint_folder.read_manifest(path)
        states = saved.data
        return replace(saved, data=None), trainer.is_sharded and checkpoint_folder.is_sharded(path)

    saved, is_sharded = run.on_main(read)
    if run.is_main:
        saved = replace(saved, data=states)
    if is_sharded:  # each rank checks some of the files
        files = sorted(sums.items())
        own_sums = run.scatter([dict(files[rank :: run.size]) for rank in range(run.size)] if run.is_main else None)
        with run.agreeing(DamagedError):
            checkpoint_folder.check_files(path, own_sums)
    else:
        run.on_main(lambda: checkpoint_folder.check_files(path, sums))
        run.on_main(lambda: full.update(shards.read_full(path)))
    index: Index = run.on_main(lambda: index_of(path))
    shapes = shapes_of(index)
    run.on_main(lambda: resume.check_model(saved, shapes, run.workload, here))
    own = trainer.state().groups
    changes = resume.check_settings(saved, settings, trainer.optimizer, own) if goes_on else []
    room = trainer.room(shapes, here)
    if is_sharded:  # every rank reads its shards
        with run.agreeing(DamagedError):
            shards.read_shards(path, index, room)
    else:
        for name, (shape, dtype) in shapes.items():
            _send(run, full.get(name), shape, dtype, room.get(name))
    trainer.load(StateDict(room, saved.groups, saved.values))
    if goes_on:
        resume.obey_changes(saved, settings, trainer.optimizer, trainer.own.values())
    return saved, changes


def model_weights(path: Path) -> dict[str, Tensor]:
    """Return the model's weights in a checkpoint, or in the newest one of a folder, by name. Called on one rank.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    newest = _find_in(path, is_named=False)
    if newest is None:
        raise UsageError(f"there is no checkpoint in {path}", fix="train first, or name another --checkpoint-dir")
    _, sums = checkpoint_folder.read_manifest(newest)
    checkpoint_folder.check_files(newest, sums)
    tensors = shards.read_full(newest)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}


def _candidates(options: Settings) -> list[Path]:
    """Return the checkpoint to resume from, if there is one; with ``--resume auto`` all, to be tried from the newest on."""
    path = options.resume_from
    try:
        if options.resume == AUTO:
            return [found for _, found in checkpoint_folder.named_in(path)]
        found = _find_in(path, is_named=bool(options.resume))
        return [] if found is None else [found]
    except OSError as error:
        raise UsageError(f"--resume: {path} cannot be read: {error.strerror}") from None


def _find_in(path: Path, *, is_named: bool) -> Path | None:
    """Return the checkpoint, or the newest one of a folder; one that ``is_named`` has to exist."""
    there = [path] if (path / MANIFEST).is_file() else [found for _, found in checkpoint_folder.steps_in(path)]
    if there or not is_named:
        return there[0] if there else None
    others = [str(other) for _, other in checkpoint_folder.steps_in(path.parent)]
    hint = f"; there is {', '.join(others)}" if others else ""
    raise UsageError(f"--resume: there is no complete checkpoint {path}{hint}")


def _send(run: Run, own: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, into: Tensor | None) -> None:
    """Copy rank 0's tensor, or its shard, into ``into`` on every rank that has a place for it. Collective."""
    full = torch.empty(shape, dtype=dtype, device=run.device) if own is None else own.to(run.device).contiguous()
    if run.size > 1 and full.numel():
        dist.broadcast(full.reshape(-1).view(torch.uint8), src=0)  # as bytes: gloo does not support all dtypes
    if into is not None:
        copy_shard(full, into)
