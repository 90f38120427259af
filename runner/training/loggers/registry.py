"""The loggers by name, beside the JSON lines that each run writes. Other packages add some by an entry point ``runner.loggers``. Imports no torch."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.extensions import extensions, load_function
from runner.training.loggers.logger import LoggedRun, Logger
from runner.versions.extras import require


@dataclass(frozen=True, kw_only=True)
class KnownLogger:
    """What is known of a logger before it is loaded.

    Attributes:
        function: what makes it of a ``LoggedRun``, as ``module:function``.
        package: which it needs.
        path: of what it writes, in the folder of the checkpoints, if no TARGET is given; "": its TARGET is no path.
        is_folder: whether the path is a folder's, and not a file's.
    """

    function: str
    package: str = ""
    path: str = ""
    is_folder: bool = False


LOGGERS = {
    "csv": KnownLogger(function="runner.training.loggers.csv_file:CSVFile", path="metrics.csv"),
    "tensorboard": KnownLogger(
        function="runner.training.loggers.tensorboard:TensorBoard",
        package="tensorboard",
        path="tensorboard",
        is_folder=True,
    ),
    "mlflow": KnownLogger(function="runner.training.loggers.mlflow:MLflow", package="mlflow"),
    "wandb": KnownLogger(function="runner.training.loggers.wandb:WeightsAndBiases", package="wandb"),
}
_OF_OTHERS = KnownLogger(function="")


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
        """What it writes to, of a run with this folder; None if it is not known to write to a path."""
        path = self.known.path
        return (Path(self.target) if self.target else folder / path) if path else None

    @property
    def known(self) -> KnownLogger:
        return LOGGERS.get(self.name, _OF_OTHERS)

    def load(self) -> Callable[[LoggedRun], Logger]:
        """The function that makes it.

        Raises:
            UsageError: its package is not installed; or it is another package's, and does not load.
        """
        known = self.known
        if self.name not in LOGGERS:
            return load_function("runner.loggers", self.name, "logger")
        if known.package:
            require(known.package, needed_by=self.option)
        module, _, function = known.function.partition(":")
        make: Callable[[LoggedRun], Logger] = getattr(importlib.import_module(module), function)
        return make


def logger_names() -> list[str]:
    """The names of all loggers, including those of other packages (entry point ``runner.loggers``)."""
    return [*LOGGERS, *(point.name for point in extensions("runner.loggers"))]


def chosen_logger(text: str) -> ChosenLogger:
    """The logger that ``NAME`` or ``NAME:TARGET`` stands for.

    Raises:
        UsageError: there is none of that name.
    """
    name, _, target = text.partition(":")
    if name not in (names := logger_names()):
        raise UsageError(f"--logger: {name!r} is none of {', '.join(names)}")
    return ChosenLogger(name, target)


def chosen_loggers(texts: Iterable[str], folder: Path) -> list[ChosenLogger]:
    """The same for several.

    Raises:
        UsageError: there is none of a name, or two would write to the same.
    """
    found = [chosen_logger(text) for text in texts]
    places = [one.path_in(folder) or str(one) for one in found]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise UsageError(f"{found[number].option}: {place} is given twice", fix="give each logger one target")
    return found


def logger_text(text: str) -> str:
    """A text that stands for a logger, as argparse wants it."""
    try:
        return str(chosen_logger(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message.partition(": ")[2]) from None
