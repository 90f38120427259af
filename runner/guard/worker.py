"""The worker as its guard sees it: what it tells, and how it is brought to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from runner.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_REQUEUE, EXIT_USAGE
from runner.guard.advice import EVERY_STEP, MORE_MEMORY, after_signal
from runner.guard.events import TELLS, name_of, read
from runner.guard.memory import killed_for_memory
from runner.guard.nursery import Child
from runner.guard.settings import Words
from runner.guard.worker_messages import Fails, WorkerMessage, read_message

# Seconds that a failed worker's exit handlers get before it is killed, and that its child processes get between
# SIGTERM and SIGKILL.
GRACE = 2.0
# Where all ranks fail alike: MPI_Finalize() waits for the others, and the first rank, which prints why, may come last.
_TOGETHER = 15.0
# Seconds that a worker gets after SIGTERM until it ends, from the end of its training on. How long it takes for its step and for saving
# is bounded by Patience, and by the launcher.
_ENDING = 30.0


class Worker:
    """One worker process. It gets a ``verdict``, its exit code, where that is known before its end."""

    def __init__(self, child: Child, rendezvous_timeout: float) -> None:
        """``rendezvous_timeout``: seconds until its rendezvous must be complete."""
        self._child, self.process, self.messages, self.board = child, child.process, child.messages, child.board
        os.set_blocking(self.messages, False)
        self.group = child.group
        self.rendezvous_at: float | None = None  # when it was complete
        self.has_started = False  # and looks for the other ranks
        self.verdict: int | None = None
        self.is_everywhere = False  # all ranks end with the verdict
        self.traceback = ""
        self.ended_by: str | None = None  # the signal; none where memory was lacking
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
        self._received = b""  # without the end of a message

    @property
    def own_ends(self) -> list[int]:
        """The file descriptors that only the guard may hold."""
        return self._child.own_ends

    def received(self) -> list[WorkerMessage]:
        """What it has told since the last call."""
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
        """It is about to end by itself."""
        self.has_said = True
        self.verdict, self.is_everywhere, self.traceback = message.code, message.everywhere, message.traceback
        self.ended_by = message.signal
        self._deadline = time.monotonic() + (_TOGETHER if message.everywhere else GRACE)

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there."""
        if not self.has_ended:  # else the number may be another process's
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

    def outcome(self, status: int, passed_on: Collection[int], words: Words) -> tuple[int, str, str]:
        """The exit code, what is to be said of it, "" where somebody has, and what to do about it.

        Args:
            status: as waitpid() returns it.
            passed_on: signals that the guard has got, and printed.
        """
        if self.verdict is not None:
            return self.verdict, "", ""
        code = os.waitstatus_to_exitcode(status)
        has_saved = code == EXIT_REQUEUE and signal.SIGTERM in passed_on  # a script
        self.ended_by = "SIGTERM" if has_saved else name_of(-code) if code < 0 else None
        if code == -signal.SIGTERM and signal.SIGTERM in passed_on and not self.rendezvous_at:
            # Another rank may have failed before they met: srun shows the largest code, and 143 says nothing.
            return EXIT_FAILURE, "", ""
        if code < 0:
            if -code in passed_on and -code not in TELLS:
                return 128 - code, "", ""
            return 128 - code, *self._killed_by(-code, words)
        if code == EXIT_OK and (progress := self.board.read()).is_in_training:
            what = f"left early, with exit code 0 after step {progress.step} of the training"
            return EXIT_FAILURE, what, EVERY_STEP
        # Before the ranks have met, only a library such as MPI_Init() ends the process without a message of the runner.
        is_by_library = not self.rendezvous_at and 0 < code < 128 and code != EXIT_USAGE and not passed_on
        return code, words.no_rendezvous(code) if is_by_library else "", ""

    def _killed_by(self, number: int, words: Words) -> tuple[str, str]:
        """What is to be said of its end by a signal, and what to do about it."""
        what, fix = f"killed by {name_of(number)}", after_signal(number, words.size)
        if number == signal.SIGKILL and killed_for_memory() > self._killed_before:
            what, fix, self.ended_by = f"{what} for lack of memory", MORE_MEMORY, None
        return what, "; ".join(filter(None, (fix, words.how_to_resume if self.board.read().step else "")))

    def close(self) -> None:
        """Close the guard's ends, after its end."""
        self._child.close()
