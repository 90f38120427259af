"""The tables that tools print, as wide as the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from runner.launch.launcher_processes import LAUNCHER_PROCESSES, ancestors, is_one_of, on_terminal

if TYPE_CHECKING:
    from rich.console import Console

_WHOLE = 1000  # columns for a pipe or a file, which has no width: lines must not be broken there
GAP = 2  # spaces between the columns of a table
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class Row:
    """A name, its status (ok, warn, fail), and what was found."""

    name: str
    status: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table; its title may have several lines."""

    title: str
    cells: Sequence[str]
    justify: Literal["left", "right"] = "right"
    spared: int = 0  # if the terminal is too narrow, columns are left out from the largest number down; 0 always stays

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(map(cell_len, (*self.title.splitlines(), *self.cells)), default=0)


def console() -> Console:
    """The console that tools print on."""
    from rich.console import Console

    width = None if on_terminal() else _launchers_width()
    return Console(markup=False, highlight=False, emoji=False, force_terminal=on_terminal(), width=width)


def _launchers_width() -> int:
    """The width of the launcher's terminal: MPICH's and Intel's launchers read the ranks' output from a pipe."""
    launchers = [process for process in ancestors() if is_one_of(process, LAUNCHER_PROCESSES)]
    try:
        terminal = os.open(f"/proc/{launchers[-1].pid}/fd/1", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except (IndexError, OSError):
        return _WHOLE
    try:
        return os.get_terminal_size(terminal).columns or _WHOLE
    except OSError:  # another pipe, or a file
        return _WHOLE
    finally:
        os.close(terminal)


def fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], list[str]]:
    """The columns that fit a width, and the titles of those that are left out."""
    shown = list(columns)
    while sum(column.width + GAP for column in shown) - GAP > width and any(column.spared for column in shown):
        shown.remove(max(shown, key=lambda column: column.spared))
    return shown, [" ".join(column.title.split()) for column in columns if column not in shown]


def print_columns(title: str, columns: Sequence[Column]) -> None:
    """Print a table. Columns that do not fit the terminal are left out and named below."""
    from rich.table import Table

    out = console()
    shown, left_out = fitting(columns, out.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column.title, justify=column.justify)
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    if title:
        out.print(title, style="italic")
    out.print(table)
    print_left_out(out, left_out)


def print_left_out(out: Console, titles: Sequence[str]) -> None:
    """Name the columns for which the terminal is too narrow."""
    if titles:
        out.print(f"no room for: {', '.join(titles)}", style="dim")


def show_progress(text: str) -> None:
    """Show on a terminal what is being done, replacing the last such text; "" clears it."""
    if on_terminal(in_place=True):
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def print_rows(rows: Sequence[Row], thing: str, closing: str) -> None:
    """Print the rows, the number of rows per status, and a closing text."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(thing)
    table.add_column("")
    table.add_column("found", overflow="fold")
    for row in rows:
        table.add_row(row.name, Text(row.status, style=STYLES[row.status]), row.detail)
    out.print(table)
    counts = {status: sum(1 for row in rows if row.status == status) for status in STYLES}
    out.print("\n" + ", ".join(f"{number} {status}" for status, number in counts.items()) + f"; {closing}")
