"""The options that say what is written about a training."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from runner.numbers import positive


@dataclass(frozen=True, kw_only=True)
class LoggingOptions:
    """What is written about a training, by rank 0."""

    metrics: Path
    every: int  # steps between two writes of metrics
    tensorboard: Path | None


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


def read_logging_options(given: argparse.Namespace, folder: Path) -> LoggingOptions:
    """The group's options as they were given; by default metrics are written in this folder."""
    return LoggingOptions(
        metrics=given.metrics or folder / "metrics.jsonl", every=given.log_every, tensorboard=given.tensorboard
    )
