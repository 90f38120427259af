"""A worker process as its agent and its guard see it: its pipes, what it tells, and how it is brought to its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

from runner.base.errors import EXIT_FAILURE
from runner.guard.hang.stacks import new_file
from runner.guard.process.events import read
from runner.guard.process.lifeline import Fails, WorkerMessage, read_message
from runner.guard.process.proxy import STOP_SIGNALS
from runner.guard.report.board import Board

# Seconds that a failed worker's exit handlers get before it is killed, and that its child processes get between
# SIGTERM and SIGKILL.
GRACE_SECONDS = 2.0
# Where all ranks fail alike: MPI_Finalize() waits for the others, and the first rank, which prints why, may come last.
_TOGETHER_SECONDS = 15.0
# Seconds that a worker gets after SIGTERM until it ends, from the end of its training on. How long it takes for its step and for saving
# is bounded by Patience, and by the launcher.
_ENDING_SECONDS = 30.0


class Worker:
    """A worker process, made before it is forked.

    Attributes:
        process: its id; 0 until it is forked.
        status: as waitpid() returns it; None until it has ended.
        problem: why it could not be forked, or ended with the importer.
        verdict: its exit code, if that is known before its end.
        given: descriptors for the worker, until it has them.
        wake: wakes the thread of its rank.
        cancel: has the agent forget it.
        end_unasked: ends it by a signal if the importer was not asked for it yet; returns whether that is so.
    """

    def __init__(
        self,
        *,
        rendezvous_timeout: float,
        leads: bool = True,
        ignored: Collection[int] = (),
        importer: Callable[[], tuple[int, IO[Any]]],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Make its pipes and files.

        Args:
            rendezvous_timeout: seconds until its rendezvous must be complete.
            leads: it leads a process group of its own; otherwise it is in its proxy's, on a terminal.
            ignored: signals that it ignores from its start.
            importer: the process whose stack is shown until the worker is forked, and the file for it.

        Raises:
            OSError: too many files are open.
        """
        with contextlib.ExitStack() as opened:  # closed where there is no room for all of it
            self.board = Board()
            opened.callback(os.close, self.board.file)
            self.messages, pipe = _pipe(opened)
            asked, self.requests = _pipe(opened)
            self.stacks, self.answers = opened.enter_context(new_file()), opened.enter_context(new_file())
            opened.pop_all()
        os.set_blocking(self.messages, False)
        os.set_blocking(self.requests, False)  # a worker that reads no more does not hold the agent up
        self.given = [pipe, asked, self.board.file]
        self.wake = wake
        self.cancel: Callable[[], None] = lambda: None
        self.end_unasked: Callable[[int], bool] = lambda number: False
        self.process, self.problem = 0, ""
        self.status: int | None = None
        self.leads = leads
        self.rendezvous_at: float | None = None  # when it was complete
        self.has_started = False  # and looks for the other ranks
        self.verdict: int | None = None
        self.is_everywhere = False  # all ranks end with the verdict
        self.traceback = ""
        self.said_signal: str | None = None  # for which it ends
        self.has_said = False  # that it ends
        self.is_silent = False  # no process can tell anything more
        self._ignored, self._importer = ignored, importer
        self._killed_before = killed_for_memory()
        self._saves: float | None = None  # on SIGTERM: seconds that it gets from then, or from its training's end
        self._late_code = 128 + signal.SIGTERM  # where it does not end in the time that it gets for it
        self._signals: list[int] = [signal.SIGKILL]  # that end it, one at each deadline
        self._deadline: float | None = time.monotonic() + rendezvous_timeout
        self._is_there, self._early = False, list[int]()  # whether it is forked, and signals that came before
        self._group_is_over = False
        self._received = b""  # without the end of a message

    @property
    def shown(self) -> tuple[int, IO[Any]]:
        """The process whose stack tells where the worker is, and the file for it: the importer while that imports."""
        return (self.process, self.stacks) if self.process else self._importer()

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
        """Note that the rendezvous is complete: the time limit ends."""
        self.rendezvous_at = time.monotonic()
        if self.verdict is None:  # else it is to end, and has come as far as this meanwhile
            self._deadline = None

    def has_failed(self, message: Fails) -> None:
        """Note that the worker is about to end by itself."""
        self.has_said = True
        self.verdict, self.is_everywhere, self.traceback = message.code, message.everywhere, message.traceback
        self.said_signal = message.signal
        self._deadline = time.monotonic() + (_TOGETHER_SECONDS if message.everywhere else GRACE_SECONDS)

    def signal(self, number: int) -> None:
        """Send a signal, if it is still there. While the importer imports, which may take long, one that would end it does so at once."""
        if not self.process:
            ends = number in (*STOP_SIGNALS, signal.SIGKILL) and number not in self._ignored
            if not (ends and self.end_unasked(number)):
                self._early.append(number)
        elif self.status is None:  # else the number may be another process's
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

    def let_save(self, *signals: int, within: float = _ENDING_SECONDS) -> None:
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
        self._deadline = time.monotonic() + GRACE_SECONDS
        return True

    def has_lacked_memory(self) -> bool:
        """Whether the kernel has killed a process here for memory since its start."""
        return killed_for_memory() > self._killed_before

    def look_at_group(self) -> None:
        """After its end: note whether no process of its group is left. The kernel may give its number to another group then."""
        if self.leads and not self._group_is_over:
            try:
                os.killpg(self.process, 0)
            except (ProcessLookupError, PermissionError):
                self._group_is_over = True

    def end_group(self, others: Collection[int] = ()) -> None:
        """After its end: send SIGTERM to the processes that it has left, and SIGKILL after two seconds.

        Args:
            others: workers of other ranks.
        """
        if not self.leads:
            _end_children(self._importer()[0], others)
        elif self.process and not self._group_is_over:
            _end_group(self.process)

    def give(self) -> None:
        """Close the descriptors that the worker has got."""
        for number in self.given:
            os.close(number)
        self.given = []

    def close(self) -> None:
        """Close the agent's ends, after it has ended, or where it is not to be forked any more."""
        self.cancel()
        self.give()
        os.close(self.messages)
        os.close(self.requests)
        self.stacks.close()
        self.answers.close()


def killed_for_memory(process: Path = Path("/proc/self"), mounts: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes the kernel has killed for memory in this process's control group, for a job's limit or the host's.

    Args:
        process: its folder in /proc.
        mounts: where control groups are mounted: version 2 here or in ``unified/``, version 1 in ``memory/``.
    """
    count = 0
    with contextlib.suppress(OSError):
        for line in (process / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                files = [mounts / kind / path.lstrip("/") / "memory.events" for kind in ("", "unified")]
            elif "memory" in controllers.split(","):
                files = [mounts / "memory" / path.lstrip("/") / "memory.oom_control"]
            else:
                continue
            for file in files:
                with contextlib.suppress(OSError):
                    count += sum(map(int, re.findall(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)))
    return count


def _pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def _end_group(group: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            os.killpg(group, number)
            while time.monotonic() < deadline:
                os.killpg(group, 0)  # raises ProcessLookupError when the group is empty
                time.sleep(0.02)
        except (ProcessLookupError, PermissionError):
            return


def _end_children(importer: int, others: Collection[int]) -> None:
    """End what a worker has left in a terminal's process group, which its parent has adopted, and no other rank's worker."""
    import psutil

    left = []
    with contextlib.suppress(psutil.Error, OSError):
        own = os.getpgid(importer)
        children = [child for child in psutil.Process(importer).children() if child.pid not in others]
        for child in children:
            with contextlib.suppress(psutil.Error, OSError):
                for process in [child, *child.children(recursive=True)]:
                    if os.getpgid(process.pid) == own:
                        process.terminate()
                        left.append(process)
    for process in psutil.wait_procs(left, GRACE_SECONDS)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
