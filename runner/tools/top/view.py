"""The view of a job: the job in two lines, a line per kind of trouble, and a table of the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.base.quantities import clock_text, duration_text, short_text
from runner.rendezvous.records.topology import ranks_text
from runner.tools.tables.table import GAP, Column, fitting
from runner.tools.top.verdicts import TROUBLE, Overview, RankVerdict

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_STYLES = {"failed": "bold red", "missing": "red", "stuck": "magenta", "slow": "yellow", "ended": "dim"}
TITLE_LINES = 2  # of the table


def head(verdicts: Sequence[RankVerdict], job: Overview, folder: str) -> list[Text]:
    """Return the lines above the table: the job, and what is wrong."""
    from rich.text import Text

    lines = [Text(line, style="bold") for line in _job_lines(job, folder)]
    lines += [Text(line, style=_STYLES[status]) for status, line in _trouble_lines(verdicts)]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def table(
    verdicts: Sequence[RankVerdict], job: Overview, width: int, rows: int | None = None
) -> tuple[Table, list[str]]:
    """Return the table of the first ranks, as wide as all would need, and the titles of columns that do not fit the width."""
    from rich.table import Table
    from rich.text import Text

    columns, left_out = fitting(_columns(verdicts, job), width)
    shown = Table(box=None, padding=0, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column.title, justify=column.justify, no_wrap=True, min_width=column.width)
        shown.add_column(width=GAP)  # rich before 14.3 adds padding to min_width, also where the edge has none
    shown.columns.pop()
    for number, one in list(enumerate(verdicts))[:rows]:
        cells = [cell for column in columns for cell in (Text(column.cells[number]), "")]
        shown.add_row(*cells[:-1], style=_STYLES.get(one.status))
    return shown, left_out


def _job_lines(job: Overview, folder: str) -> list[str]:
    ranks = f"{job.size} rank{'' if job.size == 1 else 's'}"
    hosts = "" if not job.hosts else f" on {_short(job.hosts[0]) if len(job.hosts) == 1 else f'{len(job.hosts)} hosts'}"
    since = "" if job.seconds is None else f" for {clock_text(job.seconds)}"
    if not job.size:
        return [f"no rank has written its state in {folder} yet"]
    parts = (
        _of("epoch", job.epoch, job.epochs),
        _of("step", job.step, job.steps),
        "" if job.loss is None else f"loss {job.loss:.4g}",
        "" if job.steps_per_second is None else f"{job.steps_per_second:.3g} steps/s",
        "" if job.seconds_left is None else f"{clock_text(job.seconds_left)} left",
    )
    return [f"{ranks}{hosts}{since}, {folder}", "  ".join(filter(None, parts)) or "no step yet"]


def _of(name: str, number: int | None, whole: int | None) -> str:
    return "" if number is None else f"{name} {number}" + ("" if whole is None else f"/{whole}")


def _trouble_lines(verdicts: Sequence[RankVerdict]) -> list[tuple[str, str]]:
    """Return a line per status in trouble: its first rank, why, and the other ranks."""
    lines = []
    for status in TROUBLE:
        if found := [one for one in verdicts if one.status == status]:
            first, others = found[0], [one.rank for one in found[1:]]
            host = f" on {_short(first.state.host)}" if first.state.host else ""
            more = f"; also {ranks_text(others)}" if others else ""
            lines.append((status, f"{status}: rank {first.rank}{host}: {first.why}{more}"))
    return lines


def _columns(verdicts: Sequence[RankVerdict], job: Overview) -> list[Column]:
    states = [one.state for one in verdicts]
    columns = [
        Column(title="\nrank", cells=[str(one.rank) for one in verdicts]),
        Column(title="\nhost", cells=[_short(state.host) for state in states], justify="left", spared=2),
        Column(title="\nstate", cells=list(map(_state_text, verdicts)), justify="left"),
        Column(title="\nstep", cells=["" if state.step is None else str(state.step) for state in states]),
        Column(title="ms per\nstep", cells=[_scaled(state.step_seconds, 1e-3) for state in states]),
        Column(title="\nloss", cells=["" if state.loss is None else f"{state.loss:.3g}" for state in states], spared=3),
        Column(
            title="last\nprogress",
            cells=["" if one.idle is None else duration_text(one.idle) for one in verdicts],
            spared=1,
        ),
        Column(title="CPU\n%", cells=[_scaled(state.cpu) for state in states], spared=5),
        Column(title="mem.\nGiB", cells=[_scaled(state.memory, 2**30) for state in states], spared=6),
        Column(title="GPU\n%", cells=[_scaled(state.gpu) for state in states], spared=4),
        Column(title="GPU\nGiB", cells=[_scaled(state.gpu_memory, 2**30) for state in states], spared=5),
        Column(title="", cells=[one.why for one in verdicts], justify="left", spared=9),
    ]
    if len(job.hosts) == 1:  # the first line names it
        columns = [column for column in columns if column.title != "\nhost"]
    return [column for column in columns if any(column.cells) or not column.spared]


def _state_text(one: RankVerdict) -> str:
    if one.status == "failed" and one.state.exit_code is not None:
        return f"exit {one.state.exit_code}"
    return one.state.phase or one.status if one.status == "running" else one.status


def _short(host: str | None) -> str:
    """Return a host's name without its domain; an address stays whole."""
    first = (host or "").partition(".")[0]
    return first if not first.isdecimal() else str(host)


def _scaled(value: float | None, unit: float = 1.0) -> str:
    """Return a number of units, with a decimal if it is small."""
    if value is None or not math.isfinite(value):
        return ""
    return short_text(round(value) if unit == 1.0 else value / unit)
