"""Ranks over time: their histories on one grid, of which pictures and tables are made. Seconds count from the first sample."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner.tools.run_report.folder import Sample

MOST_BINS = 120
_GAP = 4.0  # times the usual time between two samples, from which on nothing is known in between

Row = list[float | None]  # a value per bin


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The newest sample of each rank in each bin of time."""

    began: float  # Unix time
    width: float  # seconds per bin
    cells: Mapping[int, Sequence[Sample | None]]  # by rank

    @property
    def seconds(self) -> list[float]:
        """The ends of the bins."""
        number = len(next(iter(self.cells.values()), ()))
        return [self.width * (place + 1) for place in range(number)]

    def row(self, rank: int, value: Callable[[Sample], float | None]) -> Row:
        """A value of a rank's samples."""
        return [None if one is None else value(one) for one in self.cells[rank]]


def grid_of(histories: Mapping[int, Sequence[Sample]]) -> Grid | None:
    """The grid on which all ranks are; None if there is no sample."""
    times = [sample["time"] for samples in histories.values() for sample in samples]
    if not times:
        return None
    began, span = min(times), max(times) - min(times)
    bins = min(MOST_BINS, max(map(len, histories.values())))
    width = max(span / bins, 1e-3)
    return Grid(
        began=began, width=width, cells={rank: _cells(one, began, width, bins) for rank, one in histories.items()}
    )


def _cells(samples: Sequence[Sample], began: float, width: float, bins: int) -> list[Sample | None]:
    """A sample tells of the time since the one before, unless that is long ago: the job was not running then."""
    cells: list[Sample | None] = [None] * bins
    between = [later["time"] - one["time"] for one, later in itertools.pairwise(samples)]
    usual = max(statistics.median(between) if between else 0.0, width)
    last = began
    for sample in samples:
        since = last if sample["time"] - last <= _GAP * usual else sample["time"] - usual
        first, end = (int((one - began) / width) for one in (since, sample["time"]))
        for place in range(max(0, min(first, bins - 1)), min(end, bins - 1) + 1):
            cells[place] = sample
        last = sample["time"]
    return cells


def lateness(grid: Grid) -> tuple[dict[int, Row], bool]:
    """By rank: the share of a step for which it keeps the others waiting, NaN while it does not train; and whether own times are known.

    It is what a rank needs by itself beyond the ranks' median. Where no rank knows its own time, whole steps are compared.
    """
    knows_own = any(one and one.get("own_seconds") for cells in grid.cells.values() for one in cells)
    name = "own_seconds" if knows_own else "step_seconds"
    rows = {rank: grid.row(rank, lambda one: _in_training(one, name)) for rank in grid.cells}
    steps = {rank: grid.row(rank, lambda one: _in_training(one, "step_seconds")) for rank in grid.cells}
    for place in range(len(grid.seconds)):
        known = [row[place] for row in rows.values()]
        values = [one for one in known if one is not None and one == one]
        median = statistics.median_low(values) if values else 0.0
        for rank, row in rows.items():
            own, step = row[place], steps[rank][place]
            if own is not None and own == own:
                is_known = step and (len(values) > 1 or len(rows) == 1)  # one rank is late in comparison with others
                row[place] = max(0.0, own - median) / step if is_known and step else None
    return rows, knows_own


def _in_training(sample: Sample, name: str) -> float | None:
    return sample.get(name) if sample["trains"] else float("nan")


def parts_of_step(grid: Grid) -> dict[str, Row]:
    """Milliseconds of a step by what they go into, as a mean over the ranks; empty if nothing is known."""

    def part(seconds: Callable[[Sample], float | None]) -> Row:
        def while_training(one: Sample) -> float | None:
            return seconds(one) if one["trains"] else None

        return _over_ranks([grid.row(rank, while_training) for rank in grid.cells], statistics.fmean, 1000.0)

    def rest(one: Sample) -> float | None:
        step, own = one.get("step_seconds"), one.get("own_seconds") or one.get("data_seconds") or 0.0
        return None if step is None else max(0.0, step - own)

    def forward(one: Sample) -> float | None:
        own = one.get("own_seconds")
        return None if own is None else max(0.0, own - (one.get("data_seconds") or 0.0))

    parts = {"data": part(lambda one: one.get("data_seconds")), "forward": part(forward), "rest": part(rest)}
    return {name: row for name, row in parts.items() if any(one is not None for one in row)}


def sum_over(grid: Grid, ranks: Iterable[int], name: str, unit: float = 1.0) -> Row:
    """A number of these ranks together, in units; None where one that knows it at other times does not."""
    rows = _known_rows(grid, ranks, name)
    if not rows:
        return [None] * len(grid.seconds)
    sums = _over_ranks(rows, sum, 1 / unit)
    return [None if None in column else one for one, column in zip(sums, zip(*rows, strict=True), strict=True)]


def mean_over(grid: Grid, ranks: Iterable[int], name: str) -> Row:
    """The mean of a number over those of these ranks that know it."""
    rows = _known_rows(grid, ranks, name)
    return _over_ranks(rows, statistics.fmean, 1.0) if rows else [None] * len(grid.seconds)


def _known_rows(grid: Grid, ranks: Iterable[int], name: str) -> list[Row]:
    """Of the ranks that know it at any time."""
    rows = [grid.row(rank, lambda one: one.get(name)) for rank in ranks if rank in grid.cells]
    return [row for row in rows if any(one is not None for one in row)]


def _over_ranks(rows: Sequence[Row], together: Callable[[list[float]], float], factor: float) -> Row:
    columns = [[one for one in column if one is not None] for column in zip(*rows, strict=True)]
    return [factor * together(known) if known else None for known in columns]


def energy(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Joules of a rank's GPU, and the seconds in which it took them; None if they are not known.

    Its counter begins again with the driver, and each attempt of a job may have another GPU.
    """
    known = [sample for sample in samples if "gpu_energy" in sample]
    between = [
        (later["gpu_energy"] - one["gpu_energy"], later["time"] - one["time"])
        for one, later in itertools.pairwise(known)
        if one.get("attempt") == later.get("attempt") and one["gpu_energy"] <= later["gpu_energy"]
    ]
    return (sum(joules for joules, _ in between), sum(seconds for _, seconds in between)) if between else None
