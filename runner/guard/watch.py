"""The guard: a small parent process of the worker that outlives it. The fork is before torch and MPI are imported.

The guard is the process that the launcher has started. It passes signals on, bounds the waits that the worker cannot
bound itself (``MPI_Init``, a collective before the ranks have met, an interpreter that hangs while it shuts down), and
ends with the worker's exit code, which makes a launcher end the job. When the worker ends, the guard also ends the
worker's process group: all that the program has started and not put in a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from runner.errors import EXIT_FAILURE, EXIT_HANG, EXIT_OK, EXIT_USAGE
from runner.guard.board import Board
from runner.guard.group import Group, adopt_orphans, die_with
from runner.guard.hang import Hang, Patience
from runner.guard.launcher import described, end_of, error_output_of
from runner.guard.line import GONE, Address, Line, Message
from runner.guard.stacks import let_show, new_file
from runner.guard.state import StateFile
from runner.rendezvous.endpoint import listen, port_of

# Seconds that a failed worker's exit handlers get before it is killed, and that its child processes get between
# SIGTERM and SIGKILL.
GRACE = 2.0
_ORPHANED = 5.0  # seconds between SIGTERM and SIGKILL where the launcher has ended
_AFTER_ANOTHER = 1.0  # seconds that a worker gets after another rank has failed, before SIGTERM
_SAVING = 30.0  # seconds that a worker which saves on SIGTERM gets for it
_ROUND = 1.0  # seconds between two looks at the worker

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
    rank: int = 0
    size: int = 1
    # The message about a worker that has not met the others in time (None), or has ended before (its exit code).
    no_rendezvous: Callable[[int | None], str]
    is_reporting: bool  # whether this rank prints what concerns all ranks: one of them does
    how_to_resume: str  # how to resume a job that was ended; "" if that is not known
    is_shown_to_the_end: bool = True  # the launcher shows its ranks' output also after it was told to end


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What the guard watches beside its worker's end."""

    meet_within: float  # seconds until the worker must have met the other ranks
    hang_after: float = 0.0  # seconds without progress in a training; 0: forever
    launcher: Callable[[], int] = lambda: 0  # the id of the process whose end also ends the ranks, 0 for none
    is_middle: bool = False  # of the line between the guards
    log_folder: Path | None = None  # where the rank's state is written
    names: Mapping[str, Any] = field(default_factory=dict)  # rank, size, local_rank and host, for the state


class Lifeline:
    """The worker's end of the pipe to its guard."""

    def __init__(self, pipe: int, board: Board, port: int) -> None:
        self._pipe, self.board = pipe, board
        self.port = port  # at which rank 0's guard listens for the others, 0 on other ranks
        self.worker = os.getpid()  # a forked child has the lifeline too, but another process id

    def met(self, address: Address | None = None) -> None:
        """Tell the guard that the ranks have met: the time limit ends. ``address``: of the line between the guards."""
        self._tell({"met": asdict(address) if address else None})

    def failed(self, code: int, *, everywhere: bool, why: str = "") -> None:
        """Tell the guard that the worker is about to end with this code, and is to be killed if it does not.

        Args:
            everywhere: all ranks do.
            why: the cause, in a line.
        """
        self._tell({"code": code & 0xFF, "everywhere": everywhere, "why": why[:500]})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, json.dumps(message).encode() + b"\n")


def start_worker(words: Words, watched: Watched) -> Lifeline:
    """Fork. Returns in the worker; the parent stays here and ends with the worker's exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    pipe_out, pipe_in = os.pipe()
    parent = os.getpid()
    # Launchers signal a rank's whole process group, and the worker should get each signal once, from its guard: so it has
    # a group of its own. Not on a terminal, whose input goes to the foreground group only.
    has_own_group = not os.isatty(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored a child's exit status is lost
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # so that no signal is lost between the fork and the watch
    board, stacks = Board(), new_file()
    listener = _listener() if watched.is_middle else None
    port = port_of(listener) if listener else 0
    worker = os.fork()
    if worker == 0:
        os.close(pipe_out)
        if listener is not None:
            listener.close()
        die_with(parent)
        if has_own_group:
            os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        let_show(stacks)
        return Lifeline(pipe_in, board, port)
    os.close(pipe_in)
    adopt_orphans()
    group = Group(worker, is_own=has_own_group, but=(pipe_out, *([listener.fileno()] if listener else [])))
    guard = _Guard(worker, pipe_out, group, words, watched, board, stacks, listener)
    code = guard.watch(time.monotonic() + watched.meet_within)
    guard.tell_end(code)
    group.end(GRACE)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _listener() -> socket.socket | None:
    try:
        return listen(loopback=False)
    except OSError:
        return None  # the job runs without a line


class _Guard:
    def __init__(
        self,
        worker: int,
        pipe: int,
        group: Group,
        words: Words,
        watched: Watched,
        board: Board,
        stacks: IO[Any],
        listener: socket.socket | None,
    ) -> None:
        self._worker, self._pipe, self._group, self._words = worker, pipe, group, words
        self._launcher = watched.launcher()
        self._end_of_launcher = end_of(self._launcher)
        self._board, self._patience = board, Patience(worker, board, watched.hang_after)
        self._hang = Hang(worker, stacks)
        folder = watched.log_folder
        self._state = StateFile(folder, board, worker, **watched.names) if folder is not None else None
        self._said = ""  # what this guard has printed last, or the worker's own cause of its end
        self._listener = listener
        self._line: Line | None = None
        self._verdict: int | None = None  # the exit code, if it is known before the worker's end
        self._is_everywhere = False  # all ranks end like that
        self._met = False
        self._signals: list[int] = [signal.SIGKILL]  # that end the worker, one at each deadline
        self._received = b""  # from the worker, without its end
        self._passed_on: set[int] = set()
        self._ignored = {number for number in _ENDS if signal.getsignal(number) == signal.SIG_IGN}  # nohup
        self._events, events = os.pipe()
        self._heard, self._wake = os.pipe()  # a byte for each message of the line
        for end in (self._events, self._heard, pipe):
            os.set_blocking(end, False)
        threading.Thread(target=_hear, args=(events,), daemon=True).start()

    def watch(self, deadline: float) -> int:
        """Watch the worker until it has ended. Returns the exit code."""
        self._deadline: float | None = deadline
        sources = [self._events, self._pipe, self._heard, *([self._end_of_launcher] if self._end_of_launcher else [])]
        ready: list[int] = []
        while True:
            status = self._status()
            if not self._read_worker() and self._pipe in sources:  # after _status(), so that its last message is read
                sources.remove(self._pipe)
            if status is not None:
                return self._exit_code(status)
            if self._events in ready:
                for event in _EVENT.iter_unpack(os.read(self._events, 256 * _EVENT.size)):
                    self._receive(*event)
            if self._end_of_launcher in ready:
                sources = [end for end in sources if end != self._end_of_launcher]
                self._end_worker(EXIT_FAILURE, _ORPHANED)
                self._signal(signal.SIGTERM)
                self._say("the launcher has ended without its ranks, so this one ends too")
            if self._heard in ready:
                os.read(self._heard, 256)
                for message in self._line.heard() if self._line else ():
                    self._take(message)
            self._look()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                if self._verdict is None and self._met:
                    self._verdict = 128 + signal.SIGTERM  # it was to save, and has not
                elif self._verdict is None:
                    self._verdict = EXIT_FAILURE
                    self._say(self._words.no_rendezvous(None))
                elif not self._signals:  # not even SIGKILL ends it, for example in a file system that hangs
                    return self._verdict
                self._signal(self._signals.pop(0))
                self._deadline = time.monotonic() + GRACE
            left = _ROUND if self._deadline is None else min(_ROUND, max(0.0, self._deadline - time.monotonic()))
            ready, _, _ = select.select(sources, [], [], left)

    def tell_end(self, code: int) -> None:
        """Tell the others how this rank has ended, and leave their line."""
        if self._state:
            self._state.end(code, self._said)
        if self._line is None:
            return
        if code != EXIT_OK and not self._is_everywhere and not self._hang.is_reported:
            self._line.tell({"failed": code})
        self._line.close()

    def _read_worker(self) -> bool:
        """Take the worker's messages. Returns whether there may be more."""
        content = _read(self._pipe)
        self._received += content or b""
        *lines, self._received = self._received.split(b"\n")
        for message in map(json.loads, lines):
            if "met" in message:
                self._deadline, self._met = None, True
                if message["met"] and (message["met"]["rank"] > 0 or self._listener):
                    self._line = Line(Address(**message["met"]), self._listener, self._wake)
            else:
                self._verdict, self._is_everywhere = message["code"], message["everywhere"]
                self._said = message["why"]
                self._deadline = time.monotonic() + GRACE
        return content != b""

    def _end_worker(self, code: int, within: float, *signals: int) -> None:
        """End the worker, with this exit code unless one is known: by the first signal after ``within`` seconds, SIGKILL last."""
        self._verdict = code if self._verdict is None else self._verdict
        self._signals = [*signals, signal.SIGKILL]
        self._deadline = time.monotonic() + within

    def _take(self, message: Message) -> None:
        """A message of another guard."""
        rank = message["rank"]
        if "failed" in message and self._verdict is None:
            self._end_worker(EXIT_FAILURE, _AFTER_ANOTHER, signal.SIGTERM)
        elif GONE in message and self._verdict is None:
            if rank == 0 or self._words.is_reporting:
                self._say(f"rank {rank} is gone: {message[GONE]}; so this rank ends too", last=True)
            self._end_worker(EXIT_FAILURE, _AFTER_ANOTHER, signal.SIGTERM)
        elif "hangs" in message:
            self._hang.others[rank] = message["hangs"]
        elif "show" in message:
            assert self._line is not None
            self._line.tell({"stacks": self._hang.own_stacks(), "to_middle": True})
        elif "stacks" in message:
            self._hang.stacks[rank] = message["stacks"]
        elif "hung" in message:
            self._hang.is_reported = True
            self._end_worker(EXIT_HANG, 0.0)

    def _look(self) -> None:
        """See whether the worker makes progress; if not, find out with the other guards where each rank is."""
        if self._state:
            self._state.update()
        if self._verdict is not None or not self._met:
            return
        if not self._hang.reason and (reason := self._patience.lost()):
            self._hang.reason = reason
            if self._line and not self._listener:
                self._line.tell({"hangs": reason, "to_middle": True})
        is_alone = self._line is None or not (self._listener or self._line.is_open)
        if is_alone and self._hang.reason:
            self._hang.stacks[self._words.rank] = self._hang.own_stacks()
            self._report_hang([self._words.rank])
        elif self._listener and self._line and (self._hang.reason or self._hang.others):
            if not self._hang.is_asked:
                self._line.tell({"show": True})
                self._hang.stacks[0] = self._hang.own_stacks()
                self._hang.wait()
            elif self._hang.is_complete(self._words.size):
                self._report_hang(range(self._words.size))
                self._line.tell({"hung": True})

    def _report_hang(self, ranks: Iterable[int]) -> None:
        self._hang.is_reported = True
        self._say(self._hang.report(ranks), is_named=False)
        self._end_worker(EXIT_HANG, 0.0)

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
            if number == signal.SIGTERM and self._board.read().is_in_training:  # it saves
                self._deadline = time.monotonic() + _SAVING

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
        if code == EXIT_OK and (progress := self._board.read()).is_in_training:
            self._say(f"left early, with exit code 0 after step {progress.step} of the training")
            return EXIT_FAILURE
        # Before the ranks have met, only a library such as MPI_Init() ends the process without a message of the runner.
        if not self._met and 0 < code < 128 and code != EXIT_USAGE and not self._passed_on:
            self._say(self._words.no_rendezvous(code))
        return code

    def _say(self, text: str, *, last: bool = False, is_named: bool = True) -> None:
        output = error_output_of(self._launcher) if last and not self._words.is_shown_to_the_end else None
        self._said = text.partition("\n")[0]
        with contextlib.suppress(OSError):  # the launcher that took the output may be gone
            label = f"{self._words.label}: " if is_named else ""
            print(f"runner: {label}{text}", file=output or sys.stderr, flush=True)


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
