"""Loading a workload for a tool that runs its ``main``, and taking over what it would train."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.launch.modules import import_workload
from runner.launch.target import find_target
from runner.options.command import Given

if TYPE_CHECKING:
    from runner.parallel.task import Task
    from runner.training.run import Run
    from runner.training.settings import StepSettings


class _TrainingReached(BaseException):
    """Ends ``main`` where the training would begin: what follows is about its result."""


def load_workload(name: str, tool: str) -> ModuleType:
    """The workload's module, also from the working folder.

    Raises:
        UsageError: there is no workload of that name; the message names the tool.
    """
    sys.path.insert(0, os.getcwd())
    try:
        is_workload = find_target(name, tools=()).kind == "workload"
    except UsageError:
        is_workload = False
    if not is_workload:
        with raised_on_all_ranks():  # not around the import: what that refuses may concern one host
            raise UsageError(
                f"no workload {name}: {tool} takes a module with main(run, argv), for example workloads.mnist"
            )
    return import_workload(name)


def training_of(module: ModuleType, run: Run, given: Given) -> tuple[Task, StepSettings] | None:
    """Return a workload's task with these words, and its settings; None if it trains without ``fit()``.

    Raises:
        UsageError: an argument is wrong.
    """
    from runner.training.workload import bound

    found: list[tuple[Task, StepSettings]] = []

    def take(_: Run, task: Any, options: Any) -> None:
        found.append((task, options))
        raise _TrainingReached

    try:
        bound(module.main, replace(run, train_by=take), given)()
    except _TrainingReached:
        return found[0]
    return None
