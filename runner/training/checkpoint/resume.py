"""Resuming: check that a checkpoint fits, find what has changed since, and apply the changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.plain_values import plain
from runner.base.settings import settings_in
from runner.parallel.state import is_plain, like, scalar
from runner.parallel.trainer import Trainer
from runner.training.checkpoint.checkpoint_folder import Saved
from runner.training.checkpoint.shard_index import Shapes
from runner.training.data.source import source_of
from runner.training.run import Run
from runner.training.settings import Settings
from runner.versions.torch_private import rates_of

_PLAIN = (bool, int, float, str, type(None))
_LR = ("lr", "initial_lr")  # torch's schedules start from the second


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
        "groups": [_hyperparameters(group) for group in trainer.optimizer.param_groups],
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


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """The entries of a parameter group that are plain values or lists of them."""
    return {name: scalar(value) for name, value in group.items() if name != "params" and is_plain(value)}


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
