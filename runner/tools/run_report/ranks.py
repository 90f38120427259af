"""The sections about ranks over time: what a step consists of, and who is late."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from html import escape

from runner.base.quantities import clock_text
from runner.tools.run_report.folder import RunFolder
from runner.tools.run_report.markup import NOT_KNOWN, absent, figures, milliseconds_text, table
from runner.tools.run_report.over_time import parts_of_step
from runner.tools.run_report.pictures import heat_map, number_text, stack
from runner.tools.run_report.shown import Shown

_PARTS = {"data": "waiting for data", "forward": "forward pass", "rest": "backward pass, communication, update"}
_MOST_ROWS = 16  # of the table of ranks
_LEGEND = (
    'not late<span class="ramp"></span>half a step or more'
    '<span class="pause"></span>not training &ensp; ✕ failed &ensp; blank: not known'
)


def steps(shown: list[Shown]) -> str:
    """What the time of a step goes into: over time, and by ``--profile``."""
    made, tables = [], []
    for one in shown:
        parts = parts_of_step(one.grid) if one.grid else {}
        if one.grid and parts:
            named = {
                _PARTS[name] if "forward" in parts else _PARTS[name].replace("backward", "forward and backward"): row
                for name, row in parts.items()
            }
            made.append(stack(f"{one.prefix}ms of a step, mean of the ranks", named, one.grid.seconds))
        if one.run.traces:
            tables.append(
                f"<h3>{escape(one.prefix)}the steps that <code>--profile</code> has recorded, ms per step</h3>"
                + _traces(one.run)
            )
    if not made and not tables:
        return absent(
            "How the time of a step is spent is written with <code>--log-dir</code>, while a workload trains."
        )
    said = (
        '<p class="dim">Until the forward pass ends a rank waits for no other; what follows has the communication in it. '
        "<code>--profile</code> tells computing and communication apart.</p>"
    )
    return figures(made, wide=True) + said + "".join(tables)


def _traces(run: RunFolder) -> str:
    names = ("rank", "step", "compute", "exposed", "idle")
    titles = ["rank", "step", "computing", "communicating, and nothing else", "idle"]
    rows = [[number_text(one[name]) if name in one else NOT_KNOWN for name in names] for one in run.traces]
    return table(titles, rows, numbers=range(5))


def ranks_over_time(shown: list[Shown]) -> str:
    """The heat map, and a table of the ranks that are late most."""
    made, tables = [], []
    for one in shown:
        rows, knows_own = one.late
        if one.grid and rows:
            marks = [
                (failure["time"] - one.grid.began, failure["rank"])
                for failure in one.run.failures
                if all(isinstance(failure.get(name), int | float) for name in ("time", "rank"))
            ]
            of = "" if knows_own else " (whole steps are compared: no rank's own time is known)"
            title = f"{one.prefix}how late each rank is, as a share of a step{of}"
            made.append(heat_map(title, rows, one.grid.seconds, marks, _LEGEND))
            tables.append(_latest(one))
    if not made:
        return absent("Each rank's times are written with <code>--log-dir</code>.")
    said = '<p class="dim">Late is what a rank needs by itself beyond the median of the ranks: so long the others wait for it.</p>'
    return figures(made, wide=True) + said + "".join(tables)


def _latest(one: Shown) -> str:
    """A table of the ranks, those that are late most first."""
    rows = []
    for rank, shares in one.late[0].items():
        known = [share for share in shares if share is not None and not math.isnan(share)]
        times = [
            _mean([sample[name] for sample in one.run.histories[rank] if name in sample])
            for name in ("step_seconds", "own_seconds", "data_seconds")
        ]
        rows.append((_mean(known), rank, times))
    rows.sort(key=lambda row: (-(row[0] or 0.0), row[1]))
    hosts = {rank: host for host, ranks in one.hosts.items() for rank in ranks}
    cells = [
        [
            str(rank),
            hosts.get(rank, NOT_KNOWN),
            NOT_KNOWN if late is None else f"{100 * late:.1f} %",
            *(milliseconds_text(value) for value in times),
        ]
        for late, rank, times in rows[:_MOST_ROWS]
    ]
    titles = ["rank", "host", "late, mean", "ms per step", "by itself", "waiting for data"]
    more = (
        f'<p class="dim">and {len(rows) - _MOST_ROWS} others, which are less late</p>' if len(rows) > _MOST_ROWS else ""
    )
    title = f"<h3>{escape(one.prefix)}who is late, over {clock_text(one.seconds)}</h3>"
    return title + table(titles, cells, numbers=(0, 2, 3, 4, 5)) + more


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
