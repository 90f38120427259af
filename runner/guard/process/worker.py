"""The worker as its guard sees it: what it tells, and how it is brought to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from runner.base.errors import EXIT_FAILURE
from runner.guard.process.child import Child
from runner.guard.process.events import read
from runner.guard.process.lifeline import Fails, WorkerMessage, read_message
from runner.guard.process.memory import killed_for_memory
from runner.guard.process.proxy import ENDS

# Seconds that a failed worker's exit handlers get before it is killed, and that its child processes get between
# SIGTERM and SIGKILL.
GRACE = 2.0
# Where all ranks fail alike: MPI_Finalize() waits for the others, and the first rank, which prints why, may come last.
_TOGETHER = 15.0
# Seconds that a worker gets after SIGTERM until it ends, from the end of its training on. How long it takes for its step and for saving
# is bounded by Patience, and by the launcher.
_ENDING = 30.0


class Worker:
    """A worker process. Its ``verdict`` is its exit code, if that is known before its end."""

    def __init__(self, child: Child, rendezvous_timeout: float) -> None:
        """``rendezvous_timeout``: seconds until its rendezvous must be complete."""
        self._child, self.messages, self.board = child, child.messages, child.board
        os.set_blocking(self.messages, False)
        self.group = child.group
        self.rendezvous_at: float | None = None  # when it was complete
        self.has_started = False  # and looks for the other ranks
        self.verdict: int | None = None
        self.is_everywhere = False  # all ranks end with the verdict
        self.traceback = ""
        self.said_signal: str | None = None  # for which it ends
        self.has_said = False  # that it ends
        self.has_ended = False
        self.is_silent = False  # no process can tell anything more
        self._killed_before = killed_for_memory()
        self._saves: float | None = (
            None  # on SIGTERM: the seconds that it gets from then, or from the end of its training
        )
        self._late_code = 128 + signal.SIGTERM  # where it does not end in the time that it gets for it
        self._signals: list[int] = [signal.SIGKILL]  # that end it, one at each deadline
        self._deadline: float | None = time.monotonic() + rendezvous_timeout
        self._is_there, self._early = False, list[int]()  # whether it is forked, and signals that came before
        self._received = b""  # without the end of a message

    @property
    def process(self) -> int:
        """The process id; 0 until the worker is forked."""
        return self._child.process

    def has_begun(self) -> bool:
        """Whether it has been forked since the last call. It gets the signals that have come before."""
        if not self.process or self._is_there:
            return False
        self._is_there = True
        for number in self._early:
            self.signal(number)
        return True

    def received(self) -> list[WorkerMessage]:
        """Return the worker's messages since the last call."""
        while chunk := read(self.messages):
            self._received += chunk
        self.is_silent = chunk == b""
        *lines, self._received = self._received.split(b"\n")
        return [read_message(line) for line in lines]

    def complete_rendezvous(self) -> None:
        """The rendezvous is complete: the time limit ends."""
        self.rendezvous_at = time.monotonic()
        if self.verdict is None:  # else it is to end, and has come as far as this meanwhile
            self._deadline = None

    def has_failed(self, message: Fails) -> None:
        """Note that the worker is about to end by itself."""
        self.has_said = True
        self.verdict, self.is_everywhere, self.traceback = message.code, message.everywhere, message.traceback
        self.said_signal = message.signal
        self._deadline = time.monotonic() + (_TOGETHER if message.everywhere else GRACE)

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there. Before the importer forks it, one that would end it does so at once."""
        if not self.process:
            ends = number in (*ENDS, signal.SIGKILL) and number not in self._child.ignored
            if not (ends and self._child.end_unasked(number)):
                self._early.append(number)
        elif not self.has_ended:  # else the number may be another process's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, number)

    def end(self, code: int, within: float, *signals: int) -> None:
        """End it, with this exit code unless one is known: by the first signal after ``within`` seconds, SIGKILL last."""
        self.verdict = code if self.verdict is None else self.verdict
        self._signals = [*signals, signal.SIGKILL]
        self._deadline = time.monotonic() + within

    def let_end(self, code: int, within: float) -> None:
        """Let it end as it will, or with this code if it has not after ``within`` seconds, unless it gets time to save."""
        if self._saves is None:
            self._late_code, self._deadline = code, time.monotonic() + within

    def let_save(self, *signals: int, within: float = _ENDING) -> None:
        """Give it time to save: a training as long as it goes on, then so many seconds; then end it, by these signals first."""
        self._saves, self._deadline = within, time.monotonic() + within
        self._signals = [*signals, *self._signals]

    def left(self, most: float) -> float:
        """Seconds until it is late, ``most`` at most."""
        return most if self._deadline is None else min(most, max(0.0, self._deadline - time.monotonic()))

    def is_late(self) -> bool:
        """Whether the next signal is to be sent."""
        if self._deadline is None:
            return False
        if self._saves is not None and self.verdict is None and self.board.read().is_in_training:
            self._deadline = time.monotonic() + self._saves
        return time.monotonic() >= self._deadline

    def send_next_signal(self) -> bool:
        """Send the next of the signals that end it. Returns False if there is none left: not even SIGKILL ends it, for example in a file system that hangs."""
        if self.verdict is None:  # it was to save or to end, and has not; or it has not met the others
            self.verdict = self._late_code if self.rendezvous_at else EXIT_FAILURE
        if not self._signals:
            return False
        self.signal(self._signals.pop(0))
        self._deadline = time.monotonic() + GRACE
        return True

    def has_lacked_memory(self) -> bool:
        """Whether the kernel has killed a process here for memory since its start."""
        return killed_for_memory() > self._killed_before

    def close(self) -> None:
        """Close the guard's ends, after its end."""
        self._child.close()
