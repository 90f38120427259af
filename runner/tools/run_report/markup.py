"""Pieces of the page: tables, rows of figures, and how values are written. All text that is given is escaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from runner.tools.run_report.pictures import number_text

NOT_KNOWN = "n/a"

_LONG = 40  # letters of a cell, from which on it may be broken


def figures(made: Sequence[str], *, wide: bool = False) -> str:
    there = "".join(made)
    return f'<div class="figures{" wide" if wide else ""}">{there}</div>' if there else ""


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Iterable[int] = (),
    differs: Callable[[Sequence[str]], bool] = lambda row: False,
) -> str:
    """A table of texts, which scrolls within itself.

    Args:
        numbers: the columns that stand on the right.
        differs: whether a row is shown as one in which the runs differ.
    """

    def kind(column: int, cell: str) -> str:
        """A long text may be broken; numbers stand on the right."""
        named = "number" if column in numbers else "long" if len(cell) > _LONG else ""
        return f' class="{named}"' if named else ""

    numbers = set(numbers)
    head = "".join(f"<th{kind(column, '')}>{escape(title)}</th>" for column, title in enumerate(titles))
    mark = ' class="differs"'
    body = "".join(
        f"<tr{mark if differs(row) else ''}>"
        + "".join(f"<td{kind(column, cell)}>{escape(cell)}</td>" for column, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def absent(html: str) -> str:
    return f'<p class="dim">{html}</p>'


def whole_text(value: Any) -> str:
    return str(value) if isinstance(value, int) else NOT_KNOWN


def clock(value: Any) -> str:
    """A Unix time by this host's clock."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if value else NOT_KNOWN
    except (TypeError, ValueError, OverflowError):
        return NOT_KNOWN


def milliseconds_text(seconds: float | None) -> str:
    return NOT_KNOWN if seconds is None else number_text(1000 * seconds)


def energy_text(joules: float) -> str:
    return f"{joules:.0f} J" if joules < 3.6e4 else f"{joules / 3.6e6:.3g} kWh"
