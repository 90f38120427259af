"""The loggers by name. Other packages add loggers by an entry point ``runner.loggers``. Imports no torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.extensions import extensions, load_function
from runner.training.loggers.logger import LoggedRun, Logger
from runner.training.loggers.services import MLflow, TensorBoard, WeightsAndBiases
from runner.versions.extras import require

# Each needs the package of its name.
LOGGERS: dict[str, Callable[[LoggedRun], Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


@dataclass(frozen=True)
class ChosenLogger:
    """``NAME`` or ``NAME:TARGET``."""

    name: str
    target: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.target}" if self.target else self.name

    @property
    def option(self) -> str:
        return f"--logger {self.name}"

    def path_in(self, folder: Path) -> Path | None:
        """Return the folder that TensorBoard writes, for a run with this folder; None for loggers that write to no known path."""
        return (Path(self.target) if self.target else folder / self.name) if self.name == "tensorboard" else None

    def load(self) -> Callable[[LoggedRun], Logger]:
        """Return the function that makes the logger.

        Raises:
            UsageError: the logger's package is not installed, or another package's logger does not load.
        """
        if self.name not in LOGGERS:
            return load_function("runner.loggers", self.name, "logger")
        require(self.name, needed_by=self.option)
        return LOGGERS[self.name]


def chosen_logger(text: str) -> ChosenLogger:
    """Return the logger that ``NAME`` or ``NAME:TARGET`` stands for.

    Raises:
        UsageError: no logger has the name.
    """
    name, _, target = text.partition(":")
    if name not in (names := [*LOGGERS, *(point.name for point in extensions("runner.loggers"))]):
        raise UsageError(f"--logger: {name!r} is none of {', '.join(names)}")
    return ChosenLogger(name, target)


def chosen_loggers(texts: Iterable[str], folder: Path) -> list[ChosenLogger]:
    """Return the loggers that texts stand for, of a run with this folder.

    Raises:
        UsageError: no logger has one of the names, or two loggers would write to the same target.
    """
    found = [chosen_logger(text) for text in texts]
    targets = [one.path_in(folder) or str(one) for one in found]
    for number, target in enumerate(targets):
        if target in targets[:number]:
            raise UsageError(f"{found[number].option}: {target} is given twice", fix="give each logger one target")
    return found


def logger_text(text: str) -> str:
    """Check a text that stands for a logger, as the ``type`` of an argument of argparse."""
    try:
        return str(chosen_logger(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message.partition(": ")[2]) from None
