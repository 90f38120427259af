"""The options that choose the training data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.quantities import not_negative


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data, and how it is read."""

    name: str  # one of those that the workload offers
    folder: Path
    workers: int  # data loader processes per rank


def add_data_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add the group to a parser. The first of the names is the default."""
    group = parser.add_argument_group("data")
    group.add_argument("--data", choices=names, default=names[0], help="which data (default: %(default)s)")
    group.add_argument(
        "--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where data is kept (default: %(default)s)"
    )
    group.add_argument(
        "--workers", type=not_negative, default=0, help="data loader processes per rank (default: %(default)s)"
    )


def read_data_options(given: argparse.Namespace) -> DataOptions:
    """The group's options as they were given."""
    return DataOptions(name=given.data, folder=given.data_dir, workers=given.workers)
