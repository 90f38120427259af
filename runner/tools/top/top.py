"""``python -m runner top [DIR|JOB]``: all ranks of a running job, live; those in trouble stand first.

    python -m runner top                     the newest job here or in runs/
    python -m runner top runs/mnist          the job that writes in this folder
    python -m runner top 4711                Slurm's, PBS's or LSF's job 4711
    python -m runner top --once runs/mnist   print once; --json: one object

It runs on any host that sees the folder, and needs no launcher. Each rank leaves its state in DIR/state every few
seconds; where hosts do not share DIR, that of rank 0's host has all. A rank is "missing" if it has not for 10 s or 3 intervals, "stuck" without progress for 30 s or 20 steps
(whichever is longer), "slow" if its step takes more than 1.3 times the ranks' median. Arrow and page keys scroll;
q quits. ``python -m runner report DIR`` makes a page of a whole run.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

from runner.base.command_name import COMMAND
from runner.guard.rank_state import read_states
from runner.job import Job
from runner.launch.launcher_processes import on_terminal
from runner.parsing import Parser
from runner.tools.tables.table import console
from runner.tools.top.job_folder import job_folder
from runner.tools.top.verdicts import facts, judge, overview
from runner.tools.top.view import head, table


def top(job: Job, argv: list[str]) -> None:
    """Show a job's ranks: live on a terminal, otherwise once.

    Raises:
        UsageError: no job leaves its ranks' states there.
    """
    parser = Parser(prog="python -m runner top", description=__doc__)
    parser.add_argument("job", nargs="?", metavar="DIR|JOB", help="its --log-dir, or its number (default: the newest)")
    parser.add_argument("--once", action="store_true", help="print once, as it also does where there is no terminal")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)
    folder = job_folder(given.job)
    can_redraw = os.isatty(0) and on_terminal(in_place=True) and not console().is_dumb_terminal
    if can_redraw and not (given.once or given.json):
        from runner.tools.top.live import watch

        watch(folder)
    else:
        _print_once(folder, as_json=given.json)


def _print_once(folder: Path, *, as_json: bool) -> None:
    now = time.time()
    verdicts = judge(read_states(folder), now)
    if as_json:
        print(json.dumps({"folder": str(folder)} | facts(verdicts, now), indent=1))
        return
    out, job = console(), overview(verdicts, now)
    out.print(*head(verdicts, job, str(folder)), sep="\n")
    if verdicts:
        ranks, left_out = table(verdicts, job, out.width)
        out.print()
        out.print(ranks)
        if left_out:
            out.print(f"no room for: {', '.join(left_out)}", style="dim", markup=False)
        out.print(f"\nall of it as a page: {COMMAND} report {shlex.quote(str(folder))}", style="dim", markup=False)
