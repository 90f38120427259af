"""The options that all workloads share, and the parser that teaches them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UsageError
from runner.options import Parser, add_runner_options
from runner.parallel import COMPRESSIONS, GradientOptions, strategy_names
from runner.training.run import Run


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a step is to be computed, checked and with everything that depends on the number of ranks worked out."""

    batch_size: int  # samples per rank and step
    seed: int
    dtype: str  # of the parameters and the inputs: float32, float64
    strategy: str
    gradients: GradientOptions
    workers: int = 0  # data loader processes per rank


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(StepOptions):
    """How a workload is to be trained."""

    epochs: int
    max_steps: int | None  # stop after this many optimizer steps in all
    lr: float  # as the optimizer gets it, scaled where that was asked for
    check_finite: bool  # end the job where the loss is not finite
    data: str
    data_dir: Path
    metrics: Path
    tensorboard: Path | None
    log_every: int  # steps between two lines of metrics being written
    checkpoint_dir: Path
    save_every: int  # epochs; 0 is at the end only
    resume: str | None  # a checkpoint file, "" for the one in checkpoint_dir, None for a fresh start

    @property
    def checkpoint(self) -> Path:
        return self.checkpoint_dir / "checkpoint.pt"


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def not_negative(text: str) -> int:
    """A whole number, 0 or above."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or above")
    return int(text)


def positive_float(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def workload_parser(run: Run, description: str | None, *, data: Sequence[str], **defaults: Any) -> Parser:
    """A parser with all shared options, to which a workload may add its own.

    Args:
        description: the workload's docstring.
        data: the data sets it knows, the default first.
        defaults: the workload's own defaults for shared options (``epochs=10``).
    """
    parser = _parser(run, description)
    group = parser.add_argument_group("training")
    group.add_argument("--epochs", type=positive, default=10, help="passes over the data (default: %(default)s)")
    group.add_argument("--max-steps", type=positive, metavar="N", help="stop after N optimizer steps in all")
    group.add_argument("--lr", type=positive_float, default=1e-3, help="learning rate (default: %(default)s)")
    group.add_argument("--scale-lr", action="store_true", help="multiply the learning rate by the number of ranks")
    group.add_argument(
        "--check-finite",
        action="store_true",
        help="end the job where the loss is NaN or infinite, before the optimizer steps",
    )
    _add_step_options(group)
    group = parser.add_argument_group("data")
    group.add_argument("--data", choices=data, default=data[0], help="which data (default: %(default)s)")
    group.add_argument(
        "--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where data is kept (default: %(default)s)"
    )
    group.add_argument(
        "--workers", type=not_negative, default=0, help="data loader processes per rank (default: %(default)s)"
    )
    group = parser.add_argument_group("output", "written by rank 0")
    group.add_argument(
        "--checkpoint-dir",
        type=Path,
        default=Path("runs") / run.workload.rpartition(".")[2],
        metavar="DIR",
        help="(default: %(default)s)",
    )
    group.add_argument(
        "--save-every",
        type=not_negative,
        default=1,
        metavar="N",
        help="epochs between checkpoints; 0 is at the end only (default: %(default)s)",
    )
    group.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="FILE",
        help="go on from a checkpoint: this file, or the one in --checkpoint-dir if there is one",
    )
    group.add_argument(
        "--metrics", type=Path, metavar="FILE", help="JSON lines (default: metrics.jsonl in --checkpoint-dir)"
    )
    group.add_argument(
        "--log-every",
        type=positive,
        default=20,
        metavar="N",
        help="steps between lines written together (default: %(default)s)",
    )
    group.add_argument("--tensorboard", type=Path, metavar="DIR", help="also write TensorBoard events")
    add_runner_options(parser)
    parser.set_defaults(**defaults)
    return parser


def step_parser(run: Run, description: str | None, **defaults: Any) -> Parser:
    """A parser with those shared options alone that say how a step is computed: for what saves nothing.

    Args: as of ``workload_parser``.
    """
    parser = _parser(run, description)
    _add_step_options(parser.add_argument_group("training"))
    add_runner_options(parser)
    parser.set_defaults(**defaults)
    return parser


def read_step_options(run: Run, parser: Parser, argv: Sequence[str]) -> tuple[StepOptions, argparse.Namespace]:
    """The shared options of a ``step_parser``, and all options as it gave them.

    Raises:
        UsageError: an option is wrong.
    """
    given = parser.parse_args(argv)
    return StepOptions(**_step_options(given, run.size)), given


def read_options(run: Run, parser: Parser, argv: Sequence[str]) -> tuple[TrainingOptions, argparse.Namespace]:
    """The shared options, and all options as the parser gave them.

    Raises:
        UsageError: an option is wrong, or output cannot be written where it should.
    """
    given = parser.parse_args(argv)
    options = TrainingOptions(
        **_step_options(given, run.size),
        workers=given.workers,
        epochs=given.epochs,
        max_steps=given.max_steps,
        lr=given.lr * (run.size if given.scale_lr else 1),
        check_finite=given.check_finite,
        data=given.data,
        data_dir=given.data_dir,
        metrics=given.metrics or given.checkpoint_dir / "metrics.jsonl",
        tensorboard=given.tensorboard,
        log_every=given.log_every,
        checkpoint_dir=given.checkpoint_dir,
        save_every=given.save_every,
        resume=given.resume,
    )
    folders = {"--checkpoint-dir": options.checkpoint_dir, "--metrics": options.metrics.parent}

    def check_folders() -> None:
        for option, folder in folders.items():
            make_writable(folder, option)

    run.on_main(check_folders)
    return options, given


def make_writable(folder: Path, option: str) -> None:
    """Make a folder, and see that files can be made in it.

    Raises:
        UsageError: they cannot.
    """
    probe = folder / f".write-test-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"{option}: cannot write in {folder}: {error.strerror}; name a folder that can be written"
        ) from None


def _parser(run: Run, description: str | None) -> Parser:
    return Parser(prog=f"python -m runner {run.workload}", description=description)


def _add_step_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch-size", type=positive, default=32, help="samples per rank and step (default: %(default)s)"
    )
    group.add_argument(
        "--global-batch-size",
        type=positive,
        metavar="N",
        help="samples per step over all ranks, instead of --batch-size",
    )
    group.add_argument("--seed", type=not_negative, default=0, help="of weights and shuffling (default: %(default)s)")
    group.add_argument(
        "--dtype", choices=("float32", "float64"), default="float32", help="of the model (default: %(default)s)"
    )
    group.add_argument(
        "--strategy", choices=strategy_names(), default="ddp", help="how the model is parallel (default: %(default)s)"
    )
    group.add_argument(
        "--micro-batches",
        type=positive,
        default=1,
        metavar="N",
        help="accumulate gradients: compute each batch in N parts, of a whole number of samples",
    )
    group.add_argument(
        "--compression", choices=COMPRESSIONS, default="none", help="of gradients on the wire (default: %(default)s)"
    )


def _step_options(given: argparse.Namespace, size: int) -> dict[str, Any]:
    """The fields of ``StepOptions`` that every parser has."""
    batch_size = _batch_per_rank(given, size)
    if batch_size % given.micro_batches:
        raise UsageError(
            f"--micro-batches {given.micro_batches} does not divide a rank's batch of {batch_size}", told_by_all=True
        )
    return {
        "batch_size": batch_size,
        "seed": given.seed,
        "dtype": given.dtype,
        "strategy": given.strategy,
        "gradients": GradientOptions(compression=given.compression, micro_batches=given.micro_batches),
    }


def _batch_per_rank(given: argparse.Namespace, size: int) -> int:
    whole: int | None = given.global_batch_size
    if whole is None:
        return int(given.batch_size)
    each, rest = divmod(whole, size)
    if rest:
        raise UsageError(
            f"--global-batch-size {whole} does not divide among {size} ranks ({whole} = {size} × {each} + {rest}); "
            f"take {size * max(each, 1)} or {size * (each + 1)}",
            told_by_all=True,
        )
    return each
