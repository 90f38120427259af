"""Going on from a checkpoint: whether it fits, what has changed since, and that the changes are obeyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from runner.errors import UsageError
from runner.training import checkpoint
from runner.training.checkpoint import Position
from runner.training.options import TrainingOptions
from runner.training.run import Run

Content = dict[str, Any]

_PLAIN = (bool, int, float, str, type(None))
_LR = ("lr", "initial_lr")  # the second is where torch's schedules start from


def settings_of(run: Run, options: TrainingOptions, samples: int, optimizer: Optimizer) -> dict[str, Any]:
    """What shapes a run, as a checkpoint holds it. The optimizer is as the workload made it: nothing was loaded."""
    return {
        "workload": run.workload,
        "ranks": run.size,
        "global batch": options.batch_size * run.size,
        "micro-batches": options.gradients.micro_batches,
        "seed": options.seed,
        "dtype": options.dtype,
        "strategy": options.strategy,
        "compression": options.gradients.compression,
        "data": options.data,
        "samples": samples,
        "optimizer": type(optimizer).__name__,
        "groups": [_hyperparameters(group) for group in optimizer.param_groups],
    }


def read(run: Run, options: TrainingOptions, model: nn.Module) -> tuple[Path | None, Content]:
    """The checkpoint to go on from, and what it holds, on every rank: read by rank 0 alone. None for a fresh start.

    Raises:
        UsageError: it is not there, is damaged, or is one of another model.
    """
    if options.resume is None:
        return None, {}
    path = Path(options.resume) if options.resume else options.checkpoint
    if not options.resume and not run.on_main(path.exists):
        run.say(f"no checkpoint in {options.checkpoint_dir} yet: starting from the beginning")
        return None, {}
    return path, run.on_main(lambda: checkpoint.read(path, run.workload, model))


def restore(
    path: Path, content: Content, settings: dict[str, Any], model: nn.Module, optimizer: Optimizer
) -> tuple[Position, list[str]]:
    """Put a checkpoint's content into model and optimizer, with the hyperparameters that are asked for now.

    A learning rate that has changed since is obeyed by its ratio, so that schedules and a group's own factor stay.

    Returns:
        How far the training has come, and what has changed since (``lr 0.001 → 0.1``).

    Raises:
        UsageError: the optimizer is another, or the rest of an epoch would not be the rest.
    """
    then = content.get("settings", {})
    _check_optimizer(path, content, then, optimizer)
    changes = [
        f"{name} {then[name]} → {now}"
        for name, now in settings.items()
        if name != "groups" and name in then and then[name] != now
    ]
    if content["position"]["samples"]:
        for name in ("seed", "samples"):
            if name in then and then[name] != settings[name]:
                raise UsageError(
                    f"--resume: {path} is from the middle of an epoch over {then['samples']} samples, shuffled by seed "
                    f"{then['seed']}; here are {settings['samples']} samples and seed {settings['seed']}, so its rest "
                    "is not known; give it the same",
                    told_by_all=True,
                )
    position = checkpoint.restore(content, model, optimizer)
    for group, before, now in zip(optimizer.param_groups, then.get("groups", []), settings["groups"], strict=False):
        for name in before.keys() & now.keys() - {"initial_lr"}:
            if before[name] != now[name]:
                changes.append(f"{name} {_text(before[name])} → {_text(now[name])}")
                _change(group, name, before[name], now[name])
    return position, list(dict.fromkeys(changes))


def _change(group: dict[str, Any], name: str, before: Any, now: Any) -> None:
    if name == "lr" and before:
        group.update({key: now * (group[key] / before) for key in _LR if key in group})
    else:
        group[name] = now


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """Those of a parameter group that are plain values, or tuples of some."""
    return {
        name: value
        for name, value in group.items()
        if isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(part, _PLAIN) for part in value))
    }


def _check_optimizer(path: Path, content: Content, then: dict[str, Any], optimizer: Optimizer) -> None:
    saved, own = content["optimizer"]["param_groups"], optimizer.param_groups
    name = type(optimizer).__name__
    counts = [[len(group["params"]) for group in groups] for groups in (saved, own)]
    if "optimizer" in then:
        problem = f"by {then['optimizer']}, and this is {name}" if then["optimizer"] != name else None
    else:  # written by an earlier version: two optimizers need different things, two versions of one do not
        differ = saved[0].keys() - own[0].keys() and own[0].keys() - saved[0].keys()
        problem = f"by another optimizer, and this is {name}" if differ else None
    if problem is None and counts[0] != counts[1]:
        problem = f"with groups of {counts[0]} parameters in the optimizer, and here they have {counts[1]}"
    if problem:
        raise UsageError(
            f"--resume: {path} was made {problem}; take the optimizer that it was made with, or train anew without "
            "--resume",
            told_by_all=True,
        )


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
