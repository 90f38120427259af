"""The settings of a workload: how to train, on which data, and what to write. Imports no torch."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.quantities import nonempty_path, not_negative, positive, positive_float
from runner.base.settings import add_options, made_of, not_an_option, option, values_in
from runner.base.temporary import SHORTER, no_room_for_sockets
from runner.job import held
from runner.launch.detect import is_reporting
from runner.options.command import Given, add_config, config_of
from runner.options.parsing import ALL, Parser, add_full_help, wants
from runner.parallel.settings import ParallelSettings
from runner.training.loggers.registry import logger_text

AUTO = "auto"  # --resume: the newest checkpoint that is intact

S = TypeVar("S", bound="StepSettings")
T = TypeVar("T", bound="Settings")


class Every(NamedTuple):
    """How often something is done: after so many of a unit. Of any unit 0 is never."""

    number: float
    unit: str = "epochs"

    def __str__(self) -> str:
        return f"{self.number:f}".rstrip("0").rstrip(".") + self.unit if self.number else "end"


_UNITS = {"epoch": "epochs", "epochs": "epochs", "": "epochs", "step": "steps", "steps": "steps"}
_TIMES = {"s": 1, "min": 60, "h": 3600}


def every(text: str) -> Every:
    """``2epochs`` (or ``2``), ``500steps``, ``90s``, ``10min``, ``1.5h``; ``end``: never before."""
    if text == "end":
        return Every(0)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text)
    if found and found[2] in _UNITS and found[1].isdecimal() and int(found[1]):
        return Every(int(found[1]), _UNITS[found[2]])
    if found and found[2] in _TIMES and float(found[1]):
        return Every(float(found[1]) * _TIMES[found[2]], "s")
    raise argparse.ArgumentTypeError(f"{text!r} is none of 2epochs, 500steps, 90s, 10min, 1h and end")


class Steps(NamedTuple):
    """Steps of a run, the last one included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def steps(text: str) -> Steps:
    """Parse one step (``7``), or the first and the last (``3-7``)."""
    numbers = text.split("-")
    if all(number.isdecimal() for number in numbers) and len(numbers) <= 2 and 0 < int(numbers[0]) <= int(numbers[-1]):
        return Steps(int(numbers[0]), int(numbers[-1]))
    raise argparse.ArgumentTypeError(f"{text!r} is neither a step (10) nor the first and the last of several (10-12)")


@dataclass(frozen=True, kw_only=True)
class StepSettings(ParallelSettings):
    """How a step is computed: all that a workload needs which saves nothing."""

    batch_size: int = option(32, "samples per data-parallel rank and step", parse=positive, group="training")
    global_batch_size: int | None = option(
        None,
        "samples per step over all ranks, in the place of --batch-size",
        parse=positive,
        metavar="N",
        group="training",
        advanced=True,
    )
    seed: int = option(0, "random seed for weights and shuffling", parse=not_negative, group="training", changes=True)
    dtype: str | None = option(
        None,
        "type of the parameters and the inputs (default: the model's own)",
        choices=("float32", "float64"),
        group="training",
        advanced=True,
        changes=True,
    )
    workers: int = not_an_option(default=0)  # data loader processes per rank
    prefetch: int = not_an_option(default=2)  # batches that each of them reads ahead
    # The values that are no defaults, as they were given.
    given: Mapping[str, Any] = not_an_option(default_factory=dict)

    @raised_on_all_ranks()
    def for_ranks(self: S, data_ranks: int) -> S:
        """These settings with what depends on the number of data-parallel ranks filled in: ``batch_size`` is a rank's.

        Raises:
            UsageError: a batch does not divide.
        """
        batch_size, whole = self.batch_size, self.global_batch_size
        if whole is not None:
            batch_size, rest = divmod(whole, data_ranks)
            if rest:
                sum_of_all = f"{whole} = {data_ranks} × {batch_size} + {rest}"
                raise UsageError(
                    f"--global-batch-size {whole} does not divide among {data_ranks} data-parallel ranks ({sum_of_all})",
                    fix=f"take {data_ranks * max(batch_size, 1)} or {data_ranks * (batch_size + 1)}",
                )
        if batch_size % self.micro_batches:
            raise UsageError(f"--micro-batches {self.micro_batches} does not divide a rank's batch of {batch_size}")
        return replace(self, batch_size=batch_size)


def shared_in(given: Given, *names: str) -> dict[str, Any]:
    """Return the values that a command line gives these settings, which all workloads share, and the job's settings.

    Raises:
        UsageError: one is wrong.
    """
    parser = Parser(prog="python -m runner", add_help=False)
    add_options(parser, Settings, only=names)
    return given.of_file(Settings) | dict(given.values) | vars(parser.parse_known_args(given.rest)[0])


@dataclass(frozen=True, kw_only=True)
class Settings(StepSettings):
    """How a workload is trained. A subclass has its own defaults for these, and fields of its own."""

    epochs: int = option(10, "passes over the data", parse=positive, group="training")
    max_steps: int | None = option(
        None, "stop after N optimizer steps in all", parse=positive, metavar="N", group="training"
    )
    lr: float = option(1e-3, "learning rate", parse=positive_float, group="training")
    scale_lr: bool = option(
        False, "multiply the learning rate by the number of data-parallel ranks", group="training", advanced=True
    )
    check_finite: bool = option(
        False,
        "end the job if the loss or a gradient is NaN or infinite, before the optimizer steps",
        group="training",
        advanced=True,
    )
    check_replicas: int | None = option(
        None,
        "every N steps compare a digest of each parameter, or shard of one, on the ranks that have the same, and end the job if one "
        "differs; buffers, such as batch norm's statistics, may differ and are not compared",
        parse=positive,
        metavar="N",
        group="training",
        advanced=True,
    )
    checkpoint_dir: Path = option(None, "", metavar="DIR", shows="runs/WORKLOAD", group="checkpoints")
    resume: str | None = option(
        None,
        "continue from a checkpoint: this one, or the newest in --checkpoint-dir if there is one; auto skips damaged ones",
        parse=lambda text: str(nonempty_path(text)),
        metavar="CHECKPOINT",
        bare="",
        group="checkpoints",
    )
    save_every: Every = option(
        Every(1),
        "save a checkpoint this often: 2epochs, 500steps, 10min, or end, which means only after the last step",
        parse=every,
        metavar="N",
        shows="1epoch",
        group="checkpoints",
    )
    keep: int = option(2, "keep this run's newest N checkpoints", parse=positive, group="checkpoints")
    weights: Path | None = option(
        None,
        "start from these weights, which `checkpoint export` has written",
        metavar="FILE",
        group="checkpoints",
        advanced=True,
    )
    save_async: bool = option(
        False,
        "train on while a checkpoint is written; takes memory on the host for a second copy of the state",
        group="checkpoints",
        advanced=True,
    )
    requeue: bool = option(
        False,
        "after the time limit put the job back into Slurm's queue (scontrol requeue)",
        group="checkpoints",
        advanced=True,
    )
    data: str = option("", "name of the data", group="data", changes=True)
    data_dir: Path = option(Path("data"), "folder of the data", metavar="DIR", group="data")
    workers: int = option(0, "data loader processes per rank", parse=not_negative, group="data")
    prefetch: int = option(
        2, "batches that each of the --workers reads ahead", parse=positive, metavar="N", group="data", advanced=True
    )
    metrics: Path = option(
        None,
        "write metrics to this file, as JSON lines",
        metavar="FILE",
        shows="metrics.jsonl in --checkpoint-dir",
        group="logging",
        advanced=True,
    )
    log_every: int = option(20, "write metrics every N steps", parse=positive, group="logging")
    logger: tuple[str, ...] = option(
        (),
        "also log to tensorboard[:DIR], mlflow[:URI], wandb[:[ENTITY/]PROJECT] or another package's logger; repeatable",
        parse=logger_text,
        metavar="NAME[:TARGET]",
        group="logging",
    )
    profile: Steps | None = option(
        None,
        "record these steps of this run (10-12) by torch.profiler, in profile/ in --checkpoint-dir, on every rank, and print what "
        "their time went into; they take longer, which the metrics show",
        parse=steps,
        metavar="STEPS",
        group="logging",
        advanced=True,
    )

    @classmethod
    def from_args(cls: type[T], words: Sequence[str] | None = None) -> T:
        """The settings that a command line gives, for a script: ``run = runner.start(Options.from_args())``.

        ``--help`` shows the fields of this class, and ``--config FILE`` reads them, as for a workload.

        Args:
            words: ``sys.argv[1:]`` if they are not given.

        Raises:
            UsageError: one is unknown or wrong, or a file cannot be read.
            SystemExit: help was asked for, and printed; or the same where the runner has not started the script, which a line says.
        """
        given = sys.argv[1:] if words is None else list(words)
        try:
            parser = Parser(prog=Path(sys.argv[0]).name, description=sys.modules["__main__"].__doc__)
            add_full_help(parser)
            add_options(parser, cls, show="all" if wants(given, ALL) else "some")
            add_config(parser)
            values = vars(parser.parse_args(given))
            with raised_on_all_ranks():
                config = config_of(values.pop("config", ()))
                return made_of(cls, values_in(*config, cls) if config else {}, values)
        except UsageError as error:
            if held() is not None:
                raise
            if is_reporting(os.environ):
                print(f"runner: {error}", file=sys.stderr, flush=True)
            sys.exit(error.exit_code)

    @property
    def resume_from(self) -> Path:
        """The path that ``--resume`` reads: the named checkpoint, or the checkpoint folder."""
        return self.checkpoint_dir if self.resume in (None, "", AUTO) else Path(str(self.resume))

    def for_ranks(self: T, data_ranks: int) -> T:
        """Return the settings for so many data-parallel ranks, as ``StepSettings`` does; with ``scale_lr`` the learning rate is scaled."""
        if self.workers and (problem := no_room_for_sockets()):
            raise UsageError(f"--workers {self.workers}: {problem}", fix=SHORTER)
        found = super().for_ranks(data_ranks)
        return replace(found, lr=found.lr * data_ranks, scale_lr=False) if found.scale_lr else found

    def in_folder(self: T, workload: str) -> T:
        """These settings with what is not given of where to write: a folder of the workload's name."""
        folder = self.checkpoint_dir or Path("runs") / workload.rpartition(".")[2]
        return replace(self, checkpoint_dir=folder, metrics=self.metrics or folder / "metrics.jsonl")
