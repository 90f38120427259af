"""The view of a job on a terminal, read anew each second, with keys to scroll."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runner.guard.rank_state import read_states
from runner.tools.tables.table import console
from runner.tools.top.verdicts import judge, overview
from runner.tools.top.view import TITLE_LINES, head, table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleDimensions, Group, RenderableType

_EVERY = 1.0  # seconds
_LOOK = 0.1  # seconds until a changed size of the terminal is noticed
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_FAR = 1 << 30

# A key: how many rows and pages it scrolls.
_MOVES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA", "k"), (-1, 0)),
    **dict.fromkeys(("\x1b[B", "\x1bOB", "j", "\r", "\n"), (1, 0)),
    **dict.fromkeys(("\x1b[5~", "b"), (0, -1)),
    **dict.fromkeys(("\x1b[6~", " "), (0, 1)),
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "g"), (-_FAR, 0)),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "G"), (_FAR, 0)),
}


def watch(folder: Path) -> None:
    """Show a job until q is pressed. Standard input and output must be a terminal."""
    from rich.live import Live

    screen, out = _Screen(folder), console()
    with _keys(), Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            screen.read()
            deadline = time.monotonic() + _EVERY
            while time.monotonic() < deadline:
                live.update(screen.draw(out.size), refresh=True)
                keys = _pressed(deadline, out)
                if "q" in keys:
                    return
                screen.scroll(keys)


class _Screen:
    """A job's ranks as they were last read, and which of them are in the window."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = 0  # row in the window
        self._height = 1  # of the window, in rows

    def read(self) -> None:
        now = time.time()
        self._verdicts = judge(read_states(self._folder), now)
        self._job = overview(self._verdicts, now)

    def scroll(self, keys: list[str]) -> None:
        for rows, pages in (_MOVES.get(key, (0, 0)) for key in keys):
            self._move(self._first + rows + pages * self._height)

    def _move(self, first: int) -> None:
        self._first = max(0, min(first, len(self._verdicts) - self._height))

    def draw(self, size: ConsoleDimensions) -> Group:
        from rich.console import Group
        from rich.text import Text

        lines = head(self._verdicts, self._job, str(self._folder))
        self._height = max(1, size.height - len(lines) - 1 - TITLE_LINES - 1)
        self._move(self._first)  # there may be fewer ranks, or room for more, than before
        rows = slice(self._first, self._first + self._height)
        ranks, _ = table(self._verdicts, self._job, size.width, rows)
        keys = Text(self._keys_line(), style="dim", no_wrap=True, overflow="ellipsis")
        shown: list[RenderableType] = [*lines, Text(), ranks, keys] if self._verdicts else [*lines, keys]
        return Group(*shown)

    def _keys_line(self) -> str:
        number = len(self._verdicts)
        if number <= self._height:
            return "q: quit"
        last = min(number, self._first + self._height)
        return f"{self._first + 1}-{last} of {number}; arrow and page keys, Home, End: scroll; q: quit"


def _pressed(deadline: float, out: Console) -> list[str]:
    """The keys that are pressed until a time, "q" where the terminal has gone; none if it gets another size."""
    size = out.size
    while (left := deadline - time.monotonic()) > 0 and out.size == size:
        if select.select([0], [], [], min(left, _LOOK))[0]:
            return _KEY.findall(os.read(0, 1024).decode(errors="replace")) or ["q"]
    return []


@contextmanager
def _keys() -> Iterator[None]:
    """Keys are read at once and not shown; SIGTERM unwinds, so that the terminal is as before in any case."""
    before = termios.tcgetattr(0)
    mode = termios.tcgetattr(0)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    for name in (termios.VSUSP, termios.VQUIT):  # a stopped process would leave the terminal like this
        mode[6][name] = b"\0"
    handler = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)
