"""The options that say how a model is trained in parallel. Imports no torch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from runner.extensions import extensions
from runner.numbers import positive, positive_float

STRATEGIES = {
    "ddp": "runner.parallel.ddp:ddp",
    "horovod": "runner.parallel.horovod:horovod",
}
COMPRESSIONS = ("none", "fp16")


@dataclass(frozen=True, kw_only=True)
class ParallelOptions:
    """How a step is computed by all ranks together."""

    strategy: str = "ddp"
    compression: str = "none"  # of gradients on the wire: one of COMPRESSIONS
    micro_batches: int = 1  # backward passes per step; the last one exchanges the gradients
    clip_norm: float | None = None  # limit of the norm of all gradients, before the optimizer steps


def strategy_names() -> list[str]:
    """The names of all strategies, including those of other packages (entry point ``runner.strategies``)."""
    return [*STRATEGIES, *(point.name for point in extensions("runner.strategies"))]


def add_parallel_options(parser: argparse.ArgumentParser) -> None:
    """Add the group to a parser."""
    group = parser.add_argument_group("parallel", "how a step is computed by all ranks together")
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
    group.add_argument(
        "--clip-norm", type=positive_float, metavar="NORM", help="scale gradients down whose norm is above this"
    )


def read_parallel_options(given: argparse.Namespace) -> ParallelOptions:
    """The group's options as they were given."""
    return ParallelOptions(
        strategy=given.strategy,
        compression=given.compression,
        micro_batches=given.micro_batches,
        clip_norm=given.clip_norm,
    )
