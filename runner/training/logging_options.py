"""The options that say what is written about a training."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from runner.quantities import positive


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """What is written about a training, by rank 0."""

    metrics: Path
    every: int  # steps between two writes of metrics
    tensorboard: Path | None
    profile: range | None = None  # steps of this run, from 1, that torch.profiler records


def add_logging_options(parser: argparse.ArgumentParser) -> None:
    """Add the group to a parser."""
    group = parser.add_argument_group("logging", "written by rank 0")
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
    group.add_argument(
        "--profile",
        type=_steps,
        metavar="STEPS",
        help="record these steps of this run (10-12) by torch.profiler, in profile/ in --checkpoint-dir, on every rank, and "
        "print what their time went into; they take longer, which the metrics show",
    )


def read_logging_options(given: argparse.Namespace, folder: Path) -> LoggingOptions:
    """The group's options as they were given; by default metrics are written in this folder."""
    return LoggingOptions(
        metrics=given.metrics or folder / "metrics.jsonl",
        every=given.log_every,
        tensorboard=given.tensorboard,
        profile=given.profile,
    )


def _steps(text: str) -> range:
    """One step, or the first and the last."""
    numbers = text.split("-")
    if all(number.isdecimal() for number in numbers) and len(numbers) <= 2:
        first, last = int(numbers[0]), int(numbers[-1])
        if 0 < first <= last:
            return range(first, last + 1)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a step (10) nor the first and the last of several (10-12)")
