"""The learning rate of each step: the task's schedule and its warm-up."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.task import Task

Rate = Callable[[int], float]  # step, from 0 → factor of the learning rate


@raised_on_all_ranks()
def rate_of(task: Task, total: int | None) -> Rate | None:
    """Return the task's schedule of the learning rate; None if it is constant.

    Args:
        total: steps of the whole training; None if that is not known.

    Raises:
        UsageError: the schedule takes the total, and it is not known.
    """
    schedule: Any = task.schedule
    warmup = task.warmup
    if schedule is None and not warmup:
        return None
    takes_total = schedule is not None and _parameters(schedule) > 1
    if takes_total and total is None:
        raise UsageError(
            "the task's schedule takes the total of steps, and the data is a stream, whose length is not known",
            fix="give --max-steps, or a schedule of the step alone",
        )

    def rate(step: int) -> float:
        factor = min(1.0, (step + 1) / warmup) if warmup else 1.0
        if schedule is None:
            return factor
        return float(factor * (schedule(step, total) if takes_total else schedule(step)))

    return rate


def set_rate(optimizer: Optimizer, factor: float) -> None:
    """Set the learning rate of each group to a multiple of the one that it began with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def _parameters(schedule: Callable[..., float]) -> int:
    """How many arguments it needs; 1 if it does not tell."""
    try:
        parameters = inspect.signature(schedule).parameters.values()
    except ValueError:  # of some functions that are written in C
        return 1
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in by_place and one.default is one.empty for one in parameters)
