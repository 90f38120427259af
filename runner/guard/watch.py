"""The guard: a small parent process of the worker that outlives it. The fork is before torch and MPI are imported.

The guard is the process that the launcher has started. It passes signals on, bounds the waits that the worker cannot
bound itself (``MPI_Init``, a collective before the ranks have met, an interpreter that hangs while it shuts down), and
ends with the worker's exit code, which makes a launcher end the job. When the worker ends, the guard also ends the
worker's process group: all that the program has started and not put in a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from runner.errors import EXIT_FAILURE, EXIT_USAGE
from runner.guard.group import Group, adopt_orphans, die_with
from runner.guard.launcher import described, end_of, error_output_of

# The worker's messages to its guard, one byte each.
_MET = b"m"  # the ranks have met
_ENDING = b"e"  # the worker is about to end; the exit code follows

# Seconds that a failed worker's exit handlers get before it is killed, and that its child processes get between
# SIGTERM and SIGKILL.
GRACE = 2.0
_ORPHANED = 5.0  # seconds between SIGTERM and SIGKILL where the launcher has ended

# The first end a job; the others inform the program. Both are passed to the worker only: if SIGTERM ended its data
# loaders, a checkpoint on SIGTERM would fail. Its child processes get SIGTERM after it has ended.
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_TELLS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
_WATCHED = (*_ENDS, *_TELLS, signal.SIGCHLD)
_EVENT = struct.Struct("=iqi")  # a signal, the process that sent it, and si_code (above 0: the kernel sent it)


@dataclass(frozen=True, kw_only=True)
class Words:
    """The texts that the guard prints, and when it prints them."""

    label: str  # how messages name this process
    # The message about a worker that has not met the others in time (None), or has ended before (its exit code).
    no_rendezvous: Callable[[int | None], str]
    is_reporting: bool  # whether this rank prints what concerns all ranks: one of them does
    how_to_resume: str  # how to resume a job that was ended; "" if that is not known
    is_shown_to_the_end: bool = True  # the launcher shows its ranks' output also after it was told to end


class Lifeline:
    """The worker's end of the pipe to its guard."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.worker = os.getpid()  # a forked child has the lifeline too, but another process id

    def met(self) -> None:
        """Tell the guard that the ranks have met: the time limit ends."""
        self._tell(_MET)

    def failed(self, code: int) -> None:
        """Tell the guard that the worker is about to end with this code, and is to be killed if it does not."""
        self._tell(_ENDING + bytes([code & 0xFF]))

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, message)


def start_worker(words: Words, meet_within: float, launcher: Callable[[], int] = lambda: 0) -> Lifeline:
    """Fork. Returns in the worker; the parent stays here and ends with the worker's exit code.

    Args:
        meet_within: seconds until the worker must have met the other ranks.
        launcher: called in the parent; returns the id of the process whose end also ends the ranks, 0 for none.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pipe_out, pipe_in = os.pipe()
    parent = os.getpid()
    # Launchers signal a rank's whole process group, and the worker should get each signal once, from its guard: so it has
    # a group of its own. Not on a terminal, whose input goes to the foreground group only.
    has_own_group = not os.isatty(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored a child's exit status is lost
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # so that no signal is lost between the fork and the watch
    worker = os.fork()
    if worker == 0:
        os.close(pipe_out)
        die_with(parent)
        if has_own_group:
            os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        return Lifeline(pipe_in)
    os.close(pipe_in)
    adopt_orphans()
    group = Group(worker, is_own=has_own_group, but=(pipe_out,))
    code = _Guard(worker, pipe_out, group, words, launcher()).watch(time.monotonic() + meet_within)
    group.end(GRACE)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


class _Guard:
    def __init__(self, worker: int, pipe: int, group: Group, words: Words, launcher: int) -> None:
        self._worker, self._pipe, self._group, self._words, self._launcher = worker, pipe, group, words, launcher
        self._end_of_launcher = end_of(launcher)
        self._verdict: int | None = None  # the exit code, if it is known before the worker's end
        self._met = False
        self._passed_on: set[int] = set()
        self._ignored = {number for number in _ENDS if signal.getsignal(number) == signal.SIG_IGN}  # nohup
        self._events, events = os.pipe()
        for end in (self._events, pipe):
            os.set_blocking(end, False)
        threading.Thread(target=_hear, args=(events,), daemon=True).start()

    def watch(self, deadline: float | None) -> int:
        """Watch the worker until it has ended. Returns the exit code."""
        sources = [end for end in (self._events, self._pipe, self._end_of_launcher) if end is not None]
        ready: list[int] = []
        is_killed = False
        while True:
            status = self._status()
            message = _read(self._pipe)  # after _status(), so that a worker's last message is read
            if message == b"" and self._pipe in sources:
                sources.remove(self._pipe)
            if message and _MET in message:
                deadline, self._met = None, True
            if message and _ENDING in message:
                self._verdict = message[message.index(_ENDING) + 1]
                deadline = time.monotonic() + GRACE
            if status is not None:
                return self._exit_code(status)
            if self._events in ready:
                for event in _EVENT.iter_unpack(os.read(self._events, 256 * _EVENT.size)):
                    self._receive(*event)
            if self._end_of_launcher in ready:
                sources = [end for end in sources if end != self._end_of_launcher]
                self._verdict, deadline = EXIT_FAILURE, time.monotonic() + _ORPHANED
                self._signal(signal.SIGTERM)
                self._say("the launcher has ended without its ranks, so this one ends too")
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(sources, [], [], patience)
            if not ready:
                if self._verdict is None:
                    self._verdict = EXIT_FAILURE
                    self._say(self._words.no_rendezvous(None))
                elif is_killed:  # not even SIGKILL ends it, for example in a file system that hangs
                    return self._verdict
                self._signal(signal.SIGKILL)
                is_killed, deadline = True, time.monotonic() + GRACE

    def _status(self) -> int | None:
        """The worker's exit status, if it has ended. Reaps the orphans that the guard has adopted."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self._worker:
                    return ended[1]
        return None

    def _receive(self, number: int, sender: int, code: int) -> None:
        if number == signal.SIGCHLD or (code > 0 and not self._group.is_own):
            return  # the terminal has sent it to the whole group, and so to the worker
        is_new = number not in self._passed_on
        self._passed_on.add(number)
        self._signal(number)
        if is_new and number in _ENDS and number not in self._ignored and self._verdict is None:
            self._say_ended(_name(number), sender)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._worker, number)

    def _say_ended(self, name: str, sender: int) -> None:
        """Print who ends this rank. If the launcher ends all ranks, only one of them prints it."""
        how_to_resume = f"; {self._words.how_to_resume}" if self._words.how_to_resume and self._met else ""
        if self._launcher and sender in (os.getppid(), self._launcher):
            if self._words.is_reporting:
                text = "the job was ended, or another rank has failed and says so itself"
                self._say(f"{name} from the launcher: {text}{how_to_resume}", last=True)
        else:
            self._say(f"{name} from {described(sender)}{how_to_resume}")

    def _exit_code(self, status: int) -> int:
        if self._verdict is not None:
            return self._verdict
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            if -code not in self._passed_on or -code in _TELLS:  # for the others the sender was printed
                self._say(f"killed by {_name(-code)}")
            return 128 - code
        # Before the ranks have met, only a library such as MPI_Init() ends the process without a message of the runner.
        if not self._met and 0 < code < 128 and code != EXIT_USAGE and not self._passed_on:
            self._say(self._words.no_rendezvous(code))
        return code

    def _say(self, text: str, *, last: bool = False) -> None:
        output = error_output_of(self._launcher) if last and not self._words.is_shown_to_the_end else None
        with contextlib.suppress(OSError):  # the launcher that took the output may be gone
            print(f"runner: {self._words.label}: {text}", file=output or sys.stderr, flush=True)


def _hear(events: int) -> None:
    """Write every signal to this process to a pipe, with its sender, which a signal handler would not know."""
    while True:
        if hasattr(signal, "sigwaitinfo"):
            received = signal.sigwaitinfo(_WATCHED)
            event = received.si_signo, received.si_pid, received.si_code
        else:  # not Linux
            event = signal.sigwait(_WATCHED), 0, 0
        os.write(events, _EVENT.pack(*event))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _read(pipe: int) -> bytes | None:
    """The pipe's content: None if it is empty, b"" if no process can write to it any more."""
    try:
        return os.read(pipe, 64)
    except BlockingIOError:
        return None
