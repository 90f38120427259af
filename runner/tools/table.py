"""The table in which tools report: a line per thing that was looked at."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from runner.launch.processes import on_terminal

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class Row:
    """A thing, how it stands (ok, warn, fail), and what was found."""

    name: str
    status: str
    detail: str
    seconds: float | None = None


def show_progress(text: str) -> None:
    """On a terminal, say what is being done, in place of what was said before; "" wipes it out."""
    if on_terminal():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def print_rows(rows: Sequence[Row], thing: str, closing: str) -> None:
    """Print the rows, how many of them stand how, and a closing line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe or a file has no width of its own: what is found there should find its lines whole.
    console = Console(highlight=False, force_terminal=on_terminal(), width=None if on_terminal() else 160)
    table = Table(box=None, pad_edge=False, header_style="bold")
    has_times = any(row.seconds is not None for row in rows)
    table.add_column(thing)
    table.add_column("")
    if has_times:
        table.add_column("s", justify="right")
    table.add_column("found", overflow="fold")
    for row in rows:
        cells: list[str | Text] = [row.name, Text(row.status, style=STYLES[row.status])]
        if has_times:
            cells.append("" if row.seconds is None else f"{row.seconds:.1f}")
        table.add_row(*cells, Text(row.detail))
    console.print(table)
    counts = {status: sum(1 for row in rows if row.status == status) for status in STYLES}
    console.print(
        "\n" + ", ".join(f"{number} {status}" for status, number in counts.items()) + f"; {closing}", markup=False
    )
