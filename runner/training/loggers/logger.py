"""The interface of a logger, the description of the run that a logger is made from, and the run's identifiers in services."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.base.formats import check_format

_FORMAT = 1  # of the file of identifiers
_IDENTIFIERS = "loggers.json"  # beside the checkpoints


class Logger(Protocol):
    """Takes a run's values, on rank 0. A logger that raises an error gets no more values."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the values of an optimizer step and return at once. The first step is 1. A loss may be NaN or infinite."""

    def close(self) -> None:
        """Write what is not written yet: the run has ended."""


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """The description of a run from which a logger is made.

    Attributes:
        logger: the logger as it was chosen: ``NAME`` or ``NAME:TARGET``.
        target: the text after the name. TensorBoard's default is a path in ``folder``, other loggers' default is "".
        folder: the folder of the run's checkpoints.
        workload: the workload's name, such as ``mnist``.
        settings: the settings by name: numbers, texts, booleans and None.
        step: the step from which the folder's run continues; 0 for a new run.
    """

    logger: str
    target: str
    folder: Path
    workload: str
    settings: Mapping[str, Any]
    step: int = 0

    @property
    def name(self) -> str:
        """The name of the run: its folder's."""
        return self.folder.name or self.workload


def identifier_of(run: LoggedRun, make: Callable[[], str]) -> str:
    """Return the identifier of the run that continues, or make one for a new run and keep it in the file.

    Raises:
        UsageError: a later runner has written the file.
        OSError: the file cannot be read or written.
    """
    path = run.folder / _IDENTIFIERS
    known: dict[str, str] = {}
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        check_format(path, content.get("format"), _FORMAT)
        known = content["runs"]
    if not (run.step and run.logger in known):
        known[run.logger] = make()
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(json.dumps({"format": _FORMAT, "runs": known}, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    return known[run.logger]
