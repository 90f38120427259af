"""``python -m runner top [DIR]``: show all ranks of a running job, live. Ranks in trouble come first.

    python -m runner top                     the newest job here or in runs/
    python -m runner top runs/mnist          the job with this --log-dir
    python -m runner top --once runs/mnist   print once; --json: one object

It runs on any host that sees the folder, and needs no launcher. Each rank writes its state to DIR/state every two
seconds. A rank is "missing" if it has not written for 10 s or 3 intervals, "stuck" without progress for 30 s or
20 steps (whichever is longer), "slow" if its step takes more than 1.3 times the ranks' median. Ctrl-C quits.
``python -m runner report DIR`` makes a page of a whole run.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.command_name import COMMAND
from runner.base.errors import UsageError
from runner.guard.report.rank_state import FOLDER, read_states
from runner.job import Job
from runner.launch.launcher_processes import on_terminal
from runner.options.parsing import Parser
from runner.tools.tables.table import console, print_left_out
from runner.tools.top.verdicts import facts, judge, overview
from runner.tools.top.view import TITLE_LINES, head, table

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

_REDRAW_SECONDS = 1.0


def top(job: Job, argv: list[str]) -> None:
    """Show a job's ranks: live on a terminal, otherwise once.

    Raises:
        UsageError: no rank has written its state there.
    """
    parser = Parser(prog="python -m runner top", description=__doc__)
    parser.add_argument("folder", nargs="?", metavar="DIR", help="the job's --log-dir (default: the newest)")
    parser.add_argument("--once", action="store_true", help="print once, as without a terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)
    folder = _newest() if given.folder is None else Path(given.folder)
    if not os.path.isdir(folder / FOLDER):
        raise UsageError(f"there is no folder {folder / FOLDER}", fix="name the --log-dir of a job")
    if given.json:
        now = time.time()
        print(json.dumps({"folder": str(folder)} | facts(judge(read_states(folder), now), now), indent=1))
    elif given.once or not on_terminal(in_place=True) or console().is_dumb_terminal:
        _print_once(folder)
    else:
        _watch(folder)


def _newest() -> Path:
    """Return the folder in which a rank has written its state last.

    Raises:
        UsageError: there is none.
    """
    written = {}
    for folder in (Path(), *Path("runs").glob("*")):
        with suppress(OSError):
            written[folder] = os.path.getmtime(folder / FOLDER)  # changes with each file that is replaced
    if not written:
        raise UsageError(f"no job has left a folder {FOLDER}/ here or in runs/*/", fix="name the --log-dir of a job")
    return max(written, key=lambda folder: written[folder])


def _watch(folder: Path) -> None:
    """Show a job until Ctrl-C."""
    from rich.live import Live

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # Live then restores the terminal
    out = console()
    with suppress(KeyboardInterrupt), Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_picture(folder, out), refresh=True)
            time.sleep(_REDRAW_SECONDS)


def _picture(folder: Path, out: Console) -> Group:
    """Return what fits the terminal: the ranks that need attention, then others."""
    from rich.console import Group
    from rich.text import Text

    now = time.time()
    verdicts = judge(read_states(folder), now)
    job = overview(verdicts, now)
    lines = head(verdicts, job, str(folder))
    room = max(1, out.height - len(lines) - 1 - TITLE_LINES - 1)
    more = f"{len(verdicts) - room} more ranks; " if len(verdicts) > room else ""
    ranks: list[RenderableType] = [Text(), table(verdicts, job, out.width, rows=room)[0]] if verdicts else []
    return Group(*lines, *ranks, Text(f"{more}Ctrl-C: quit", style="dim"))


def _print_once(folder: Path) -> None:
    now = time.time()
    verdicts = judge(read_states(folder), now)
    out, job = console(), overview(verdicts, now)
    out.print(*head(verdicts, job, str(folder)), sep="\n")
    if verdicts:
        ranks, left_out = table(verdicts, job, out.width)
        out.print()
        out.print(ranks)
        print_left_out(out, left_out)
        out.print(f"\nall of it as a page: {COMMAND} report {shlex.quote(str(folder))}", style="dim")
