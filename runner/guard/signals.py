"""The signals that a guard gets, and passes on to its worker; and how a script is told to save (``--on-preempt``)."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from runner.guard.process.events import name_of
from runner.guard.process.launcher import catches, described
from runner.guard.process.proxy import ENDS
from runner.guard.process.worker import Worker
from runner.guard.report.console import Console
from runner.guard.settings import Watched, Words

# Seconds that Ctrl-C gives ranks: one that waits for another in C does not notice it. A script may save by itself.
_INTERRUPTED, _SCRIPT_INTERRUPTED = 5.0, 10.0
_ASK_TO_SAVE = (signal.SIGTERM, signal.SIGUSR1)


class Signals:
    """The signals that were passed on, and the time that the worker gets for each."""

    def __init__(
        self,
        console: Console,
        words: Words,
        watched: Watched,
        before_telling: Callable[[bool], None],
        *,
        ignored: Collection[int] = (),
    ) -> None:
        """Nothing has come yet. Call before the fork: a file that an earlier job has left is removed.

        Args:
            before_telling: called before it is printed who ends this rank, with whether that is the launcher.
            ignored: signals that the worker ignores from its start, as under nohup.
        """
        self._console, self._watched, self._before_telling = console, watched, before_telling
        self._is_alone, self._ignored, self._notice = words.size == 1, set(ignored), watched.notice
        self._told = 0  # the worker that was told before its time limit
        self._near_at = None if watched.notice_within is None else time.monotonic() + watched.notice_within
        if words.rank == 0 and isinstance(self._notice, Path):
            with contextlib.suppress(OSError):
                self._notice.unlink()
        self.passed_on: set[int] = set()
        self.is_ended_by_launcher = False
        self.first_end: tuple[str, str] | None = None  # who ends the job by a signal, and its name

    @property
    def has_ended_it(self) -> bool:
        """Whether one of those that end a job has come."""
        return bool(self.passed_on.intersection(ENDS))

    def take(self, worker: Worker, number: int, sender: int, code: int) -> None:
        """A signal to this process. ``code``: si_code, above 0 if the kernel has sent it."""
        if code > 0 and not worker.leads and worker.process:
            return  # the terminal has sent it to the whole group, and so to the worker
        is_new = number not in self.passed_on
        self.passed_on.add(number)
        is_notice = number in _ASK_TO_SAVE and self._is_listening(worker)
        if not is_notice or number == self._notice:
            worker.signal(number)
        elif is_new or number == signal.SIGUSR1:
            self._give_notice(worker)
        if is_new and number in ENDS and number not in self._ignored and worker.verdict is None:
            self.is_ended_by_launcher = self._console.is_launchers(sender)
            self.first_end = self.first_end or (f"{name_of(number)} from {described(sender)}", name_of(number))
            self._before_telling(self.is_ended_by_launcher)
            self._console.say_ended(name_of(number), sender, has_trained=worker.board.read().step > 0)
            if number == signal.SIGTERM and is_notice:  # the worker has not got it yet
                worker.let_save(number, within=self._watched.script_saves_within)
            elif number == signal.SIGTERM and worker.board.read().is_in_training:
                worker.let_save()
            elif number == signal.SIGINT and worker.board.read().is_in_training:
                worker.end(128 + signal.SIGINT, _INTERRUPTED)
            elif worker.rendezvous_at:
                self.bound_interrupted(worker)

    def bound_interrupted(self, worker: Worker) -> None:
        """Bound the time of a worker that has met others, if SIGINT has come."""
        if signal.SIGINT in self.passed_on - self._ignored and not self._is_alone:
            worker.let_end(128 + signal.SIGINT, _SCRIPT_INTERRUPTED)

    def give_notice_when_due(self, worker: Worker) -> None:
        """Tell a script to save if its time limit is near; once for each worker."""
        is_near = self._near_at is not None and time.monotonic() >= self._near_at
        if is_near and worker.process != self._told and self._is_listening(worker):
            self._told = worker.process
            self._console.say_once("the time limit is near: the script is told to save")
            self._give_notice(worker)

    def _give_notice(self, worker: Worker) -> None:
        if isinstance(self._notice, Path):
            try:
                self._notice.touch()
            except OSError as error:
                self._console.say(f"--on-preempt: cannot create {self._notice}: {error.strerror}")
        elif self._notice is not None:
            worker.signal(self._notice)

    def _is_listening(self, worker: Worker) -> bool:
        """Whether the script would take the notice by now: a signal without a handler would end it."""
        way = self._notice
        return bool(worker.rendezvous_at) and (
            isinstance(way, Path) or (way is not None and catches(worker.process, way))
        )
