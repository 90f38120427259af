"""A tiny parent for the worker: forked before torch or MPI is imported, it outlives whatever happens to it.

The launcher knows the parent. The parent passes signals on, bounds the waits that the worker cannot
bound itself (``MPI_Init``, a collective before the ranks have met, an interpreter that hangs while it
shuts down), and ends with the worker's exit code, which is what makes a launcher end the job.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from runner.errors import EXIT_FAILURE, EXIT_USAGE

# What the worker tells its guard, one byte each.
_MET = b"m"  # the ranks have met: the wait is over
_ENDING = b"e"  # followed by the exit code: the worker is on its way out

# After a worker has failed, its exit handlers get this long before it is killed (seconds).
GRACE = 2.0

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Lifeline:
    """The worker's end of the pipe to its guard."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def met(self) -> None:
        """The ranks have met; stop the clock."""
        self._tell(_MET)

    def failed(self, code: int) -> None:
        """The worker ends with this code, soon; kill it if it does not."""
        self._tell(_ENDING + bytes([code & 0xFF]))

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, message)


def start_worker(label: str, meet_within: float, no_meeting: Callable[[int | None], str]) -> Lifeline:
    """Fork. Returns in the worker; the parent stays here and ends with the worker's exit code.

    Args:
        label: how messages name this process.
        meet_within: seconds until the worker must have met the other ranks.
        no_meeting: what to say where that time is over (of None), or where the worker has ended without a word
            before it met the others (of its exit code).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pipe_out, pipe_in = os.pipe()
    parent = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.close(pipe_out)
        _die_with_parent(parent)
        if not os.isatty(0):
            # Launchers signal a rank's whole process group: the worker should hear it once, from its guard. A
            # terminal, though, gives what is typed to the group in its foreground.
            os.setpgid(0, 0)
        return Lifeline(pipe_in)
    os.close(pipe_in)
    code = _watch(worker, pipe_out, label, time.monotonic() + meet_within, no_meeting)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _watch(worker: int, pipe: int, label: str, deadline: float | None, no_meeting: Callable[[int | None], str]) -> int:
    wake_out, wake_in = os.pipe()
    for end in (wake_out, wake_in, pipe):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    for handled in (*_FORWARDED, signal.SIGCHLD):
        signal.signal(handled, lambda *_: None)  # the wakeup pipe tells; Python must only not act on it
    verdict: int | None = None  # the exit code, where it is known before the worker's end
    met = False
    sources = [wake_out, pipe]
    while True:
        ended, status = os.waitpid(worker, os.WNOHANG)
        said = _read(pipe)  # only now: the last word of a worker that has ended counts
        if said == b"" and pipe in sources:
            sources.remove(pipe)
        if said and _MET in said:
            deadline, met = None, True
        if said and _ENDING in said:
            verdict = said[said.index(_ENDING) + 1]
            deadline = time.monotonic() + GRACE
        if ended:
            code = _exit_code(status, verdict, label)
            # Before the meeting only a library ends the process without the runner's own word: MPI_Init does.
            if not met and verdict is None and 0 < code < 128 and code != EXIT_USAGE:
                print(f"runner: {label}: {no_meeting(code)}", file=sys.stderr, flush=True)
            return code
        patience = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(sources, [], [], patience)
        if not ready:
            if verdict is None:
                verdict = EXIT_FAILURE
                print(f"runner: {label}: {no_meeting(None)}", file=sys.stderr, flush=True)
            os.kill(worker, signal.SIGKILL)
            deadline = None
        if wake_out in ready:
            for number in os.read(wake_out, 4096):
                if number in _FORWARDED and not (number == signal.SIGINT and _terminal_sends_it_to_both()):
                    os.kill(worker, number)


def _read(pipe: int) -> bytes | None:
    """What is in the pipe: None where there is nothing, b"" where nobody can write to it any more."""
    try:
        return os.read(pipe, 64)
    except BlockingIOError:
        return None


def _exit_code(status: int, verdict: int | None, label: str) -> int:
    code = os.waitstatus_to_exitcode(status)
    if verdict is not None:
        return verdict
    if code < 0:
        if -code not in _FORWARDED:  # those come from a launcher that ends the job and has said why
            print(f"runner: {label}: killed by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
        return 128 - code
    return code


def _terminal_sends_it_to_both() -> bool:
    """Ctrl-C reaches the whole foreground process group; the worker is in it where it may read the terminal."""
    if not os.isatty(0):
        return False
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the guard dies, however it dies (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(EXIT_FAILURE)
