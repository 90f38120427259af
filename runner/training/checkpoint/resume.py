"""Resuming: which checkpoint is taken, whether it fits, how its state comes to all ranks, and what has changed since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.plain_values import plain
from runner.base.settings import settings_in
from runner.parallel.state import StateDict, copy_shard, is_plain, like, scalar
from runner.parallel.trainer import Trainer
from runner.training.checkpoint import checkpoint_folder, shards
from runner.training.checkpoint.checkpoint_folder import MANIFEST, Saved, Sums
from runner.training.checkpoint.file_errors import DamagedError
from runner.training.checkpoint.shard_index import Index, Shapes, index_of, shapes_of
from runner.training.data.source import source_of
from runner.training.run import Run
from runner.training.settings import AUTO, Settings
from runner.versions.torch_private import rates_of

_PLAIN = (bool, int, float, str, type(None))
_LR = ("lr", "initial_lr")  # torch's schedules start from the second


def restore(
    run: Run, trainer: Trainer, options: Settings, settings: dict[str, Any] | None
) -> tuple[Saved | None, list[str]]:
    """Load the checkpoint that the options name, if any. Collective.

    Args:
        settings: of this run, as in ``settings_of``; None: the training does not continue, so they need not fit.

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
            return _load(run, trainer, path, settings)
        except DamagedError as error:
            if path == candidates[-1]:
                raise
            run.print(f"skipped: {error.message}")
    run.print(f"no checkpoint in {options.checkpoint_dir} yet: starting from the beginning")
    return None, []


def _load(run: Run, trainer: Trainer, path: Path, settings: dict[str, Any] | None) -> tuple[Saved, list[str]]:
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
    run.on_main(lambda: check_model(saved, shapes, run.workload, here))
    own = trainer.state().groups
    changes = [] if settings is None else check_settings(saved, settings, trainer.optimizer, own)
    room = trainer.room(shapes, here)
    if is_sharded:  # every rank reads its shards
        with run.agreeing(DamagedError):
            shards.read_shards(path, index, room)
    else:
        for name, (shape, dtype) in shapes.items():
            _send(run, full.get(name), shape, dtype, room.get(name))
    trainer.load(StateDict(room, saved.groups, saved.values))
    if settings is not None:
        obey_changes(saved, settings, trainer.optimizer, trainer.own.values())
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


def settings_of(run: Run, options: Settings, trainer: Trainer) -> dict[str, Any]:
    """The settings that determine a run's result, for its checkpoints. Call it before the optimizer's state is loaded."""
    return {
        "workload": run.workload,
        "ranks": run.size,
        "global batch": options.batch_size * run.data_size,
        **{
            name.replace("_", " "): value if isinstance(value := getattr(options, name), _PLAIN) else one.text_of(value)
            for name, one in settings_in(type(options)).items()
            if one.about.changes
        },
        "dtype": str(trainer.dtype).removeprefix("torch."),  # which the model has without the option, too
        "samples": source_of(trainer.task).length,
        **plain(trainer.task.settings),
        "optimizer": _kind(trainer.optimizer),
        "groups": [
            {name: scalar(value) for name, value in group.items() if name != "params" and is_plain(value)}
            for group in trainer.optimizer.param_groups
        ],
    }


def check_model(saved: Saved, shapes: Shapes, workload: str, here: dict[str, tuple[int, ...]]) -> None:
    """Check that a checkpoint is of this model, whose parameters and buffers have the shapes ``here``.

    Raises:
        UsageError: a parameter or buffer is missing, has another shape, or is not in the model.
    """
    there = {name.removeprefix("model."): shape for name, (shape, _) in shapes.items() if name.startswith("model.")}
    if there != here:
        raise UsageError(
            f"--resume: {saved.path} is a checkpoint of another model ({saved.workload}, this is {workload}): "
            f"{_first_difference(there, here)}",
            fix="name another checkpoint, or another --checkpoint-dir",
        )


@raised_on_all_ranks()
def check_settings(
    saved: Saved, settings: dict[str, Any], optimizer: Optimizer, groups: list[dict[str, Any]]
) -> list[str]:
    """Check that a run can resume from a checkpoint. Returns what has changed since (``lr 0.001 → 0.1``), hyperparameters last.

    Args:
        groups: the optimizer's parameter groups now, with names as ``params``.

    Raises:
        UsageError: the optimizer differs, or the seed or the data does in the middle of an epoch.
    """
    then = saved.settings
    _check_optimizer(saved, optimizer, groups)
    before, now = ({name: one[name] for name in ("seed", "samples")} for one in (then, settings))
    if saved.position.samples and before != now:
        raise UsageError(
            f"--resume: cannot resume {saved.path} in mid-epoch with other data or another seed (then {before['samples']} samples, "
            f"seed {before['seed']}; now {now['samples']} samples, seed {now['seed']})",
            fix="use the same, or start over without --resume",
        )
    changes = [
        f"{name} {_text(then[name])} → {_text(now)}"
        for name, now in settings.items()
        if name != "groups" and name in then and then[name] != now and repr(then[name]) != repr(now)  # NaN is like NaN
    ]
    for _, name, before, now in _changed_hyperparameters(then, settings):
        changes.append(f"{name} {_text(before)} → {_text(now)}")
    return list(dict.fromkeys(changes))


def obey_changes(saved: Saved, settings: dict[str, Any], optimizer: Optimizer, own: Iterable[Any] = ()) -> None:
    """Give the optimizer, after its state was loaded, the hyperparameters of this run.

    A changed learning rate scales the loaded one by its ratio, so that schedules and a group's own factor are kept.

    Args:
        own: what the program has registered. Torch's schedulers among it, which keep rates of their own, continue from the new one.
    """
    for number, name, before, now in _changed_hyperparameters(saved.settings, settings):
        group = optimizer.param_groups[number]
        if name == "lr" and before:
            for key in _LR:
                if key in group:
                    group[key] *= now / before
            for rates in rates_of(own):
                if number < len(rates):
                    rates[number] *= now / before
        else:
            group[name] = like(group[name], now)


def _changed_hyperparameters(then: dict[str, Any], settings: dict[str, Any]) -> list[tuple[int, str, Any, Any]]:
    """(group, name, before, now) of each hyperparameter that has changed. A rate that a schedule sets is the one that it starts from."""
    return [
        (number, name, before[source], now[source])
        for number, (before, now) in enumerate(zip(then["groups"], plain(settings["groups"]), strict=False))
        for name in before.keys() & now.keys() - {"initial_lr"}
        for source in ["initial_lr" if name == "lr" and "initial_lr" in before.keys() & now.keys() else name]
        if before[source] != now[source]
    ]


def _check_optimizer(saved: Saved, optimizer: Optimizer, own: list[dict[str, Any]]) -> None:
    then, now, problem = saved.settings["optimizer"], _kind(optimizer), ""
    before, after = ([set(group["params"]) for group in groups] for groups in (saved.groups, own))
    if then != now:
        problem = f"by {then}, and this is {now}"
    elif [*map(len, before)] != [*map(len, after)]:
        problem = (
            f"with groups of {[*map(len, before)]} parameters in the optimizer, and here they have {[*map(len, after)]}"
        )
    elif before != after:
        number, lost = next(
            (number, names - after[number]) for number, names in enumerate(before) if names != after[number]
        )
        problem = f"with {min(lost)} in the optimizer's group {number}, where it is not now"
    if problem:
        raise UsageError(
            f"--resume: {saved.path} was made {problem}",
            fix="take the optimizer that it was made with, or train anew without --resume",
        )


def _kind(optimizer: Optimizer) -> str:
    """The name of the optimizer's class, or of that which torch's ZeRO divides."""
    return type(getattr(optimizer, "optim", optimizer)).__name__


def _first_difference(there: dict[str, tuple[int, ...]], here: dict[str, tuple[int, ...]]) -> str:
    for name in [*here, *there]:
        if name not in there:
            return f"it has no {name}"
        if name not in here:
            return f"it has {name}, which the model has not"
        if there[name] != here[name]:
            return f"{name} is {list(there[name])} there and {list(here[name])} here"
    raise AssertionError("they are the same")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
