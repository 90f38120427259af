"""The interface of a logger, and the description of the run that a logger is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


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
