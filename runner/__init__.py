"""A distributed runner for PyTorch, launched by MPI (or whatever starts your ranks).

The public names are loaded when they are first used, so that ``import runner`` imports neither torch nor MPI. ``__init__.pyi`` has them
for type checkers.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "LoggedRun": "runner.training.loggers.logger:LoggedRun",
    "Logger": "runner.training.loggers.logger:Logger",
    "Model": "runner.training.model:Model",
    "Plan": "runner.parallel.task:Plan",
    "Preempted": "runner.training.preemption:Preempted",
    "Result": "runner.training.summary:Result",
    "Run": "runner.training.run:Run",
    "RunnerError": "runner.base.errors:RunnerError",
    "Settings": "runner.training.settings:Settings",
    "State": "runner.training.summary:State",
    "Task": "runner.parallel.task:Task",
    "UsageError": "runner.base.errors:UsageError",
    "option": "runner.base.settings:option",
    "start": "runner.starting.start:start",
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
