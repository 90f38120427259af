"""``python -m runner supervise``: start a job again when it fails in a way that a restart can mend.

    python -m runner supervise -- mpirun -np 4 python -m runner train.py
    python -m runner supervise --max-restarts 9 -- srun python -m runner a.py
    python -m runner supervise --report supervise        what happened

With a workload, give it --resume auto.

Everything after -- is the command, with its launcher. It is started again from the newest intact checkpoint (--resume auto) after
a rank was killed, has hung, lost its host or raised an error. It is not after a wrong request (exit code 2), after the same error
at the same step as before, after a signal to supervise, or when it asks to be queued again (75).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType

from runner.errors import EXIT_OK, EXIT_REQUEUE, EXIT_USAGE, UsageError
from runner.job import Job
from runner.numbers import not_negative, positive_float
from runner.options import Parser
from runner.tools.top.states import State, read_states

_LOG = "attempts.jsonl"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a start of the job has ended."""

    number: int  # the first is 1
    began: float  # Unix time
    seconds: float
    code: int
    rank: int | None = None  # that failed first; None if no rank has left word
    host: str | None = None
    step: int | None = None
    what: str = ""
    next: str = ""  # what supervise did then


def supervise(job: Job, argv: list[str]) -> None:
    """Start the command until it ends well, or a restart would not help.

    Raises:
        UsageError: the command starts no runner, or the log cannot be written.
        SystemExit: with the last attempt's exit code.
    """
    del job
    given = _parser().parse_args(argv)
    if given.report is not None:
        _print_report(given.report / _LOG)
        return
    place = _place_of_options(given.command)
    log = given.log_dir / _LOG
    try:
        given.log_dir.mkdir(parents=True, exist_ok=True)
        log.write_text("")
    except OSError as error:
        raise UsageError(f"--log-dir: cannot write {log}: {error.strerror}", fix="name another folder") from None
    last: Attempt | None = None
    number = 0
    while True:
        number += 1
        folder = given.log_dir / f"attempt-{number}"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier supervise
        command = [*given.command[:place], "--log-dir", str(folder), *given.command[place:]]
        began, start = time.time(), time.monotonic()
        code, was_told = _run(command)
        attempt = _attempt(number, began, time.monotonic() - start, code, folder)
        reason = "supervise was told to end" if was_told else _reason_to_end(attempt, last, given)
        attempt = Attempt(**(asdict(attempt) | {"next": reason or "started again"}))
        with open(log, "a") as file:
            file.write(json.dumps(asdict(attempt)) + "\n")
        if code == EXIT_OK:
            sys.exit(code)
        _say(f"attempt {number} ended with code {code} after {attempt.seconds:.0f} s{_cause(attempt)}: {attempt.next}")
        if reason:
            sys.exit(code)
        last = attempt


def _parser() -> Parser:
    parser = Parser(prog="python -m runner supervise", description=__doc__)
    parser.add_argument("--max-restarts", type=not_negative, default=3, metavar="N", help="(default: 3)")
    parser.add_argument(
        "--min-uptime",
        type=positive_float,
        default=0.0,
        metavar="SECONDS",
        help="an attempt that ended sooner is not started again (default: 0)",
    )
    parser.add_argument(
        "--log-dir", type=Path, default=Path("supervise"), metavar="DIR", help="on all hosts (default: supervise)"
    )
    parser.add_argument("--report", type=Path, nargs="?", const=Path("supervise"), metavar="DIR", help="print a table")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="with its launcher")
    return parser


def _place_of_options(command: list[str]) -> int:
    """Where the runner's options stand in a command. Removes the ``--`` before it.

    Raises:
        UsageError: it starts no runner.
    """
    if command[:1] == ["--"]:
        del command[0]
    for place, pair in enumerate(itertools.pairwise(command), 2):
        if pair == ("-m", "runner"):
            return place
    raise UsageError(
        "supervise: the command does not start a runner",
        fix="for example: supervise -- mpirun -np 4 python -m runner workloads.mnist --resume auto",
    )


def _run(command: list[str]) -> tuple[int, bool]:
    """Run a command to its end, and pass signals on to it. Returns its exit code, and whether there were any."""
    told: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        told.append(number)
        if process is not None and not (number == signal.SIGINT and os.isatty(0)):  # a terminal has sent it to all
            process.send_signal(number)

    process: subprocess.Popen[bytes] | None = None
    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        process = subprocess.Popen(command)
        for number in told:
            process.send_signal(number)
        code = process.wait()
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (code if code >= 0 else 128 - code), bool(set(told) - {signal.SIGUSR1})  # which a script may only save at


def _attempt(number: int, began: float, seconds: float, code: int, folder: Path) -> Attempt:
    """An attempt, with the first cause that a rank has left."""
    states = read_states(folder) if (folder / "state").is_dir() else []
    failed = [one for one in states if one.exit_code]
    first = min(failed, key=lambda one: (not one.what, one.time or 0.0), default=None)
    if first is None:
        return Attempt(number=number, began=began, seconds=seconds, code=code)
    return Attempt(
        number=number,
        began=began,
        seconds=seconds,
        code=code,
        rank=first.rank,
        host=first.host,
        step=_last_step(states),
        what=first.what or "",
    )


def _last_step(states: list[State]) -> int | None:
    return max((one.step for one in states if one.step is not None), default=None)


def _reason_to_end(attempt: Attempt, last: Attempt | None, given: argparse.Namespace) -> str:
    """Why a job is not started again; "" if it is."""
    fixed = {
        EXIT_OK: "done",
        EXIT_USAGE: "the request is wrong, and a restart does not mend that",
        EXIT_REQUEUE: "it asks to be queued again",
    }
    if attempt.code in fixed:
        return fixed[attempt.code]
    if last is not None and attempt.what and attempt.step and (attempt.what, attempt.step) == (last.what, last.step):
        return f"the same error at the same step ({attempt.step}) as before"
    if attempt.seconds < given.min_uptime:
        return f"it ended before --min-uptime {given.min_uptime:g}"
    if attempt.number > given.max_restarts:
        return f"--max-restarts {given.max_restarts} are over"
    return ""


def _cause(attempt: Attempt) -> str:
    if attempt.rank is None:
        return ""
    return f" (rank {attempt.rank} on {attempt.host}, step {attempt.step}: {attempt.what or 'no cause was left'})"


def _print_report(log: Path) -> None:
    from rich.table import Table

    from runner.tools.table import console

    try:
        attempts = [Attempt(**json.loads(line)) for line in log.read_text().splitlines()]
    except OSError as error:
        raise UsageError(f"--report: cannot read {log}: {error.strerror}", fix="name supervise's --log-dir") from None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("attempt", "began", "seconds", "code", "step", "cause", "then"):
        table.add_column(title, justify="right" if title in ("attempt", "seconds", "code", "step") else "left")
    for one in attempts:
        cause = "" if one.rank is None else f"rank {one.rank} on {one.host}: {one.what}"
        began = datetime.fromtimestamp(one.began).strftime("%m-%d %H:%M:%S")
        step = "" if one.step is None else str(one.step)
        table.add_row(str(one.number), began, f"{one.seconds:.1f}", str(one.code), step, cause, one.next)
    console().print(table)


def _say(text: str) -> None:
    print(f"supervise: {text}", file=sys.stderr, flush=True)
