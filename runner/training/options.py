"""The options that all workloads share, in groups, and their parser."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UsageError, raised_on_all_ranks
from runner.options import Parser, add_runner_options
from runner.parallel.options import ParallelOptions, add_parallel_options, read_parallel_options
from runner.parallel.task import Plan
from runner.quantities import not_negative, positive, positive_float
from runner.training.checkpoint_options import CheckpointOptions, add_checkpoint_options, read_checkpoint_options
from runner.training.data_options import DataOptions, add_data_options, read_data_options
from runner.training.logging_options import LoggingOptions, add_logging_options, read_logging_options
from runner.training.run import Run
from runner.training.slurm import check_requeue

__all__ = [
    "StepOptions",
    "TrainingOptions",
    "make_writable",
    "not_negative",
    "positive",
    "positive_float",
    "read_options",
    "read_step_options",
    "step_parser",
    "workload_parser",
]


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """How a step is computed. Checked, and with all values that depend on the number of ranks filled in."""

    batch_size: int  # samples per data-parallel rank and step
    seed: int
    dtype: str  # of the parameters and the inputs: float32, float64
    parallel: ParallelOptions

    @property
    def workers(self) -> int:
        """Data loader processes per rank."""
        return 0


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(StepOptions):
    """How a workload is to be trained."""

    epochs: int
    max_steps: int | None  # stop after this many optimizer steps in total
    lr: float  # as the optimizer gets it, after scaling by the ranks if that is asked for
    check_finite: bool  # end the job if the loss is not finite
    check_replicas: int | None  # steps between two comparisons of the ranks' parameters
    data: DataOptions
    checkpoint: CheckpointOptions
    logging: LoggingOptions

    @property
    def workers(self) -> int:
        return self.data.workers


def workload_parser(
    run: Run, description: str | None, *, data: Sequence[str], plan: Plan | None = None, **defaults: Any
) -> Parser:
    """A parser with all shared options, to which a workload may add its own.

    Args:
        description: the workload's docstring.
        data: the data sets it knows, the default first.
        plan: the task's, if it has one: what it cannot bear is refused before anything is loaded.
        defaults: the workload's own defaults for shared options (``epochs=10``). The options of the layout (``tp``) are read
            before the workload is loaded, and have none.
    """
    assert not defaults.keys() & {"strategy", "tp", "pp", "replicate"}, (
        "the ranks' layout is made before these are known"
    )
    parser = _parser(run, description)
    group = parser.add_argument_group("training")
    group.add_argument("--epochs", type=positive, default=10, help="passes over the data (default: %(default)s)")
    group.add_argument("--max-steps", type=positive, metavar="N", help="stop after N optimizer steps in all")
    group.add_argument("--lr", type=positive_float, default=1e-3, help="learning rate (default: %(default)s)")
    group.add_argument(
        "--scale-lr", action="store_true", help="multiply the learning rate by the number of data-parallel ranks"
    )
    group.add_argument(
        "--check-finite",
        action="store_true",
        help="end the job where the loss or a gradient is NaN or infinite, before the optimizer steps",
    )
    group.add_argument(
        "--check-replicas",
        type=positive,
        metavar="N",
        help="every N steps compare a digest of each parameter, or part of one, on the ranks that have the same, and end the job "
        "where one differs; buffers, such as batch norm's statistics, may differ and are not compared",
    )
    _add_step_options(group)
    add_parallel_options(parser)
    add_data_options(parser, data)
    add_checkpoint_options(parser, Path("runs") / run.workload.rpartition(".")[2])
    add_logging_options(parser)
    add_runner_options(parser)
    parser.set_defaults(plan=plan, **defaults)
    return parser


def step_parser(run: Run, description: str | None, *, plan: Plan | None = None, **defaults: Any) -> Parser:
    """A parser with only the shared options about computing a step, for a workload that saves nothing.

    Args: as for ``workload_parser``.
    """
    parser = _parser(run, description)
    _add_step_options(parser.add_argument_group("training"))
    add_parallel_options(parser)
    add_runner_options(parser)
    parser.set_defaults(plan=plan, **defaults)
    return parser


def read_step_options(run: Run, parser: Parser, argv: Sequence[str]) -> tuple[StepOptions, argparse.Namespace]:
    """The shared options of a ``step_parser``, and all options as parsed.

    Raises:
        UsageError: an option is wrong.
    """
    given = parser.parse_args(argv)
    return StepOptions(**_step_options(given, run.data_size)), given


def read_options(run: Run, parser: Parser, argv: Sequence[str]) -> tuple[TrainingOptions, argparse.Namespace]:
    """The shared options, and all options as parsed.

    Raises:
        UsageError: an option is wrong, or output cannot be written to the place given.
    """
    given = parser.parse_args(argv)
    options = TrainingOptions(
        **_step_options(given, run.data_size),
        epochs=given.epochs,
        max_steps=given.max_steps,
        lr=given.lr * (run.data_size if given.scale_lr else 1),
        check_finite=given.check_finite,
        check_replicas=given.check_replicas,
        data=read_data_options(given),
        checkpoint=read_checkpoint_options(given),
        logging=read_logging_options(given, given.checkpoint_dir),
    )
    if options.checkpoint.requeue:
        run.on_main(lambda: check_requeue(os.environ))
    folders = {"--checkpoint-dir": options.checkpoint.folder, "--metrics": options.logging.metrics.parent}

    def check_folders() -> None:
        for option, folder in folders.items():
            make_writable(folder, option)

    if run.train_by is None:  # a tool that trains the task itself writes none of it
        run.on_main(check_folders)
    return options, given


def make_writable(folder: Path, option: str) -> None:
    """Make a folder, and check that files can be created in it.

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
            f"{option}: cannot write in {folder}: {error.strerror}", fix="name a folder that can be written"
        ) from None


def _parser(run: Run, description: str | None) -> Parser:
    return Parser(prog=f"python -m runner {run.workload}", description=description)


def _add_step_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch-size", type=positive, default=32, help="samples per data-parallel rank and step (default: %(default)s)"
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


@raised_on_all_ranks()
def _step_options(given: argparse.Namespace, data_size: int) -> dict[str, Any]:
    """The fields of ``StepOptions``."""
    batch_size, parallel = _batch_per_rank(given, data_size), read_parallel_options(given)
    if given.plan is not None:
        given.plan.check(parallel)
    if batch_size % parallel.micro_batches:
        raise UsageError(f"--micro-batches {parallel.micro_batches} does not divide a rank's batch of {batch_size}")
    return {"batch_size": batch_size, "seed": given.seed, "dtype": given.dtype, "parallel": parallel}


def _batch_per_rank(given: argparse.Namespace, data_size: int) -> int:
    whole: int | None = given.global_batch_size
    if whole is None:
        return int(given.batch_size)
    each, rest = divmod(whole, data_size)
    if rest:
        raise UsageError(
            f"--global-batch-size {whole} does not divide among {data_size} data-parallel ranks ({whole} = {data_size} × {each} + {rest})",
            fix=f"take {data_size * max(each, 1)} or {data_size * (each + 1)}",
        )
    return each
