"""A distributed runner for PyTorch, launched by MPI (or whatever starts your ranks).

The public names are loaded when they are first used, so that ``import runner`` imports neither torch nor MPI.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from runner.base.errors import RunnerError as RunnerError
    from runner.base.errors import UsageError as UsageError
    from runner.base.settings import option as option
    from runner.parallel.task import Plan as Plan
    from runner.parallel.task import Task as Task
    from runner.starting import start as start
    from runner.training.hooks.state import State as State
    from runner.training.model import Model as Model
    from runner.training.preemption import Preempted as Preempted
    from runner.training.settings import Settings as Settings
    from runner.training.summary import Result as Result
    from runner.training.training_run import TrainingRun as Run  # noqa: F401  # ruff knows no name of another

_PLACES = {
    "Model": "runner.training.model:Model",
    "Plan": "runner.parallel.task:Plan",
    "Preempted": "runner.training.preemption:Preempted",
    "Result": "runner.training.summary:Result",
    "Run": "runner.training.training_run:TrainingRun",
    "RunnerError": "runner.base.errors:RunnerError",
    "Settings": "runner.training.settings:Settings",
    "State": "runner.training.hooks.state:State",
    "Task": "runner.parallel.task:Task",
    "UsageError": "runner.base.errors:UsageError",
    "option": "runner.base.settings:option",
    "start": "runner.starting:start",
}
__all__ = ["__version__", *_PLACES]  # noqa: PLE0604  # all of them are texts


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = globals()[name] = getattr(importlib.import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
