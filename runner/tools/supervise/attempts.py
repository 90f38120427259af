"""Attempts: a start of the job, run to its end, and the cause of its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from runner.base.errors import EXIT_HANG, EXIT_OK, EXIT_REQUEUE, EXIT_USAGE, UsageError
from runner.base.formats import check_format
from runner.guard.process.forks import die_with
from runner.guard.report.failure import FORMAT
from runner.guard.report.rank_state import RankState, read_states

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_ROUND = 5.0  # seconds between two looks at a running job
_LEAVING = 120.0  # seconds that ranks without their launcher get to save and to end
_IDLE = 6  # rounds in which a launcher whose ranks have all ended may do something else, such as a wrapper's copying of results
_NO_SIGNAL = 255  # Intel MPI's mpirun gives it for most codes of its ranks, and ssh where the connection is lost
_SILENT = 3  # intervals without a new state after which a rank counts as lost


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The end of a start of the job, and its cause."""

    number: int  # the first is 1
    began: float  # Unix time
    seconds: float
    code: int
    rank: int | None = None  # that failed first; None if no rank has left word
    rank_code: int | None = None  # its own exit code, in whose place some launchers give another
    host: str | None = None
    addresses: Sequence[str] = ()  # of this host
    step: int | None = None
    what: str = ""
    ended_by: str | None = None  # the signal that has ended this rank, or by which it was asked to save
    is_lost: bool = False  # the rank is lost with its guard, as with its host
    is_told: bool = False  # a signal to supervise was to end it
    is_broken_off: bool = False  # the launcher was killed, or has ended its ranks: what they saved then is to continue
    left: str = ""  # ranks that still run
    next: str = ""  # what supervise did then

    @property
    def job_code(self) -> int:
        """The launcher's exit code, or its ranks' 2 or 75 (75 does not count if the job was broken off)."""
        counts = (EXIT_USAGE,) if self.is_broken_off else (EXIT_USAGE, EXIT_REQUEUE)
        if self.rank_code is not None and self.rank_code in counts and self.code != EXIT_OK:
            return self.rank_code
        return self.code


class SignalRelay:
    """Passes signals to this process on to the launcher while one runs."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None  # the launcher
        self.passed_on: set[int] = set()  # to this launcher
        self.unsent: list[int] = []  # that came while none ran

    def receive(self, number: int, _: FrameType | None = None) -> None:
        """Handle a signal."""
        if self.process is None or self.process.poll() is not None:
            self.unsent.append(number)
            return
        self.passed_on.add(number)
        if not (number == signal.SIGINT and os.isatty(0)):  # a terminal has sent it to all
            self.process.send_signal(number)

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Pass signals on to this launcher from now on, and the signals that came while it was started."""
        self.process, self.passed_on = process, set(self.unsent)
        while self.unsent:
            process.send_signal(self.unsent.pop(0))


@contextmanager
def passing_signals_on() -> Iterator[SignalRelay]:
    """Pass on the signals that end a job or ask it to save, until the block ends."""
    signals = SignalRelay()
    before = {number: signal.signal(number, signals.receive) for number in _SIGNALS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_attempt(number: int, command: list[str], folder: Path, signals: SignalRelay) -> Attempt:
    """Run a command, whose ranks write their states into a folder, to its end.

    Raises:
        UsageError: it cannot be started.
    """
    began, start = time.time(), time.monotonic()
    code = _run(command, folder, signals)
    seconds = time.monotonic() - start
    is_killed = _is_killed(code, read_states(folder))
    running = wait_for_ranks(folder, everywhere=is_killed, is_last=lambda: bool(signals.unsent))
    ended = Attempt(
        number=number,
        began=began,
        seconds=seconds,
        code=code if code >= 0 else 128 - code,
        is_told=bool(signals.passed_on - {signal.SIGUSR1}),  # at which a script may only save
        left=", ".join(f"rank {one.rank} on {one.host}" for one in running),
    )
    ended = _with_cause(ended, read_states(folder), _read_failure(folder))
    by_signal = is_killed and code != _NO_SIGNAL
    has_saved_for_it = ended.rank_code == EXIT_REQUEUE and ended.ended_by == "SIGTERM"
    # The signals that supervise has passed on ask the ranks to save, whatever they do to the launcher.
    return replace(ended, is_broken_off=not signals.passed_on and (by_signal or has_saved_for_it))


def _is_killed(code: int, states: list[RankState]) -> bool:
    """Return whether the launcher was killed. A shell around it ends with 128 + n; so may it after a killed rank."""
    return code < 0 or (code >= 128 and all(one.exit_code != code for one in states))


def _with_cause(attempt: Attempt, states: list[RankState], failure: Mapping[str, Any] | None = None) -> Attempt:
    """Return the attempt with its first cause: the guards' common one, or else the first that a rank has left.

    Args:
        failure: content of the guards' ``failure.json``; None if there is none.
    """
    first, is_lost = _first(states) if failure is None else _named(failure, states)
    if first is None:
        return attempt
    # A rank that hangs leaves no word, and rank 0's guard reports it.
    reported = failure["what"] if failure is not None and first.exit_code == EXIT_HANG else ""
    return replace(
        attempt,
        rank=first.rank,
        rank_code=first.exit_code,
        host=first.host,
        addresses=first.addresses,
        step=max((one.step for one in states if one.step is not None), default=None),
        what="lost with its guard" if is_lost else first.what or reported,
        ended_by=first.ended_by,
        is_lost=is_lost,
    )


def _first(states: list[RankState]) -> tuple[RankState | None, bool]:
    """Return the rank that failed first by the ranks' states, and whether it is lost with its guard."""
    # The first that rank 0's guard has lost, which knows all others; it may have been ended before it could write its own end.
    lost = next((one.lost for one in states if one.lost is not None), None)
    failed = [one for one in states if (one.exit_code if lost is None else one.rank == lost)]
    return min(failed, key=lambda one: (not one.what, one.time or 0.0), default=None), lost is not None


def _named(failure: Mapping[str, Any], states: list[RankState]) -> tuple[RankState, bool]:
    """Return the rank that the guards' report names, and whether its guard was lost. A hang is blamed on the rank that the others wait for."""
    rank, code = failure["rank"], failure["exit_code"]
    own = next((one for one in states if one.rank == rank), RankState(rank=rank, host=failure["host"]))
    return replace(own, exit_code=code if own.exit_code is None else own.exit_code), code is None


def _read_failure(folder: Path) -> dict[str, Any] | None:
    """Return the job's first failure, if its guards have left one. Print why a later runner's cannot be read."""
    path = folder / "failure.json"
    with suppress(OSError, ValueError):
        failure = json.loads(path.read_text(errors="replace"))
        if isinstance(failure, dict) and {"rank", "exit_code", "host", "what"} <= failure.keys():
            try:
                check_format(path, failure.get("format"), FORMAT)
            except UsageError as error:
                print(f"supervise: {error}", file=sys.stderr, flush=True)
                return None
            return failure
    return None


def _run(command: list[str], folder: Path, signals: SignalRelay) -> int:
    """Run a command to its end. Returns its exit code (below 0: killed by a signal)."""
    # Ended with this process, whatever ends that: a later `supervise` would start the job beside this one.
    end_too = partial(die_with, os.getpid(), signal.SIGTERM)
    try:
        process = subprocess.Popen(command, preexec_fn=end_too)  # noqa: PLW1509 — this process has one thread
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from None
    signals.begin(process)
    try:
        return _wait(process, folder)
    finally:
        signals.process = None


def _wait(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait for the launcher's end. Returns its exit code, or its ranks' if it had to be ended after all of them.

    One that has lost a host may wait for it for minutes, and is ended: its ranks end by themselves.
    """
    rounds, ends, codes = 0, [signal.SIGTERM, signal.SIGKILL], list[int]()
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_ROUND)
            return code if len(ends) == 2 else max(codes, default=code)
        states = read_states(folder)
        has_lost = any(one.lost is not None for one in states)
        codes = _codes_of_all(states)
        rounds += bool(has_lost or codes)
        if ends and rounds > (1 if has_lost else _IDLE):
            process.send_signal(ends.pop(0))


def _codes_of_all(states: list[RankState]) -> list[int]:
    """Return the exit codes of a job's ranks; none before all of them have ended."""
    codes = [one.exit_code for one in states if one.exit_code is not None]
    return codes if states and len(codes) == states[0].size else []


def wait_for_ranks(
    folder: Path, *, everywhere: bool, within: float = _LEAVING, is_last: Callable[[], bool] = lambda: False
) -> list[RankState]:
    """Wait until no rank of an attempt runs: two jobs would write the same checkpoints and take the same port.

    Args:
        everywhere: also wait for other hosts' ranks, by their states. A launcher that ended by itself has ended them.
        within: seconds.
        is_last: whether no other attempt is to follow.

    Returns:
        The ranks that still run.
    """
    written: dict[int, tuple[float | None, float]] = {}  # by rank: the time in its state, and when it was new here
    end = time.monotonic() + within
    while True:
        now, states = time.monotonic(), read_states(folder)
        for one in states:
            if one.rank not in written or written[one.rank][0] != one.time:
                written[one.rank] = one.time, now
        ended = {one.lost for one in states} | {one.rank for one in states if one.has_ended}
        running = [
            one
            for one in states
            if one.rank not in ended
            and (
                _runs_here(one.pid)
                if one.host == socket.gethostname()
                else everywhere and now - written[one.rank][1] < _SILENT * (one.interval or 0.0)
            )
        ]
        if not running or now > end or is_last():
            return running
        time.sleep(0.1)


def _runs_here(process: int | None) -> bool:
    import psutil

    try:
        return process is not None and psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
