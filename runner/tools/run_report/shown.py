"""A run, and what several sections of the page need of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape

from runner.tools.run_report.folder import RunFolder, Sample
from runner.tools.run_report.markup import NOT_KNOWN
from runner.tools.run_report.over_time import Grid, Row, energy, grid_of, lateness
from runner.tools.run_report.pictures import Point


class Shown:
    """A run, and what several sections need of it."""

    def __init__(self, run: RunFolder, *, is_one_of_two: bool) -> None:
        self.run = run
        self.prefix = f"{run.name}: " if is_one_of_two else ""  # of titles
        self.grid = grid_of(run.histories)

    @cached_property
    def late(self) -> tuple[dict[int, Row], bool]:
        """See ``lateness``."""
        return lateness(self.grid) if self.grid else ({}, False)

    @cached_property
    def hosts(self) -> dict[str, list[int]]:
        """The ranks of each host."""
        found: dict[str, list[int]] = {}
        for state in self.run.states:
            found.setdefault(state.host or NOT_KNOWN, []).append(state.rank)
        listed = self.run.facts.get("hosts")
        for host in listed if not found and isinstance(listed, list) else ():
            if isinstance(host, dict) and isinstance(host.get("ranks"), list):
                found[str(host.get("name"))] = [one for one in host["ranks"] if isinstance(one, int)]
        return found

    def heading(self) -> str:
        """Of a table; "" where there is one run."""
        return f"<h3>{escape(self.run.name)}</h3>" if self.prefix else ""

    @property
    def samples(self) -> list[Sample]:
        return [one for samples in self.run.histories.values() for one in samples]

    @property
    def seconds(self) -> float:
        """From the first sample to the last; 0 if there is none."""
        return self.grid.width * len(self.grid.seconds) if self.grid else 0.0

    @property
    def restarts(self) -> int:
        """Starts after the first, by supervise or in place."""
        in_place = sum(1 for one in self.run.failures if one.get("fixed"))
        return in_place + max(0, len(self.run.attempts) - 1)


def energy_of(histories: Mapping[int, Sequence[Sample]]) -> tuple[float, float] | None:
    """Joules of some ranks' GPUs, and the power of all of them in watts."""
    known = [found for samples in histories.values() if (found := energy(samples)) is not None]
    return (sum(one for one, _ in known), sum(one / seconds for one, seconds in known if seconds)) if known else None


def points_of(grid: Grid, row: Row) -> list[Point]:
    """Of a curve over time, with gaps where nothing is known."""
    return [(at, math.nan if value is None else value) for at, value in zip(grid.seconds, row, strict=True)]
