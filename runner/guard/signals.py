"""The signals that a guard gets, and passes on to its worker."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection

from runner.guard.console import Console
from runner.guard.events import name_of
from runner.guard.launcher import described
from runner.guard.notice import Notice
from runner.guard.proxy import ENDS
from runner.guard.worker import Worker

# Seconds that Ctrl-C gives ranks: one that waits for another in C does not notice it. A script may save by itself.
_INTERRUPTED, _SCRIPT_INTERRUPTED = 5.0, 10.0


class Signals:
    """What has been passed on, and what the worker gets time for."""

    def __init__(
        self,
        console: Console,
        notice: Notice,
        before_telling: Callable[[bool], None],
        *,
        is_alone: bool,
        script_saves_within: float,
        ignored: Collection[int] = (),
    ) -> None:
        """Nothing has come yet.

        Args:
            script_saves_within: seconds that a script gets which is told to save.
            before_telling: called before it is printed who ends this rank, with whether that is the launcher.
            is_alone: this is the only rank.
            ignored: signals that the worker ignores from its start.
        """
        self._console, self._notice, self._before_telling = console, notice, before_telling
        self._is_alone, self._script_saves_within = is_alone, script_saves_within
        self._ignored = set(ignored)  # nohup
        self.passed_on: set[int] = set()
        self.is_ended_by_launcher = False
        self.first_end: tuple[str, str] | None = None  # who ends the job by a signal, and its name

    @property
    def has_ended_it(self) -> bool:
        """Whether one of those that end a job has come."""
        return bool(self.passed_on.intersection(ENDS))

    def take(self, worker: Worker, number: int, sender: int, code: int) -> None:
        """A signal to this process. ``code``: si_code, above 0 if the kernel has sent it."""
        if code > 0 and not worker.group.is_own and worker.process:
            return  # the terminal has sent it to the whole group, and so to the worker
        is_new = number not in self.passed_on
        self.passed_on.add(number)
        is_notice = self._notice.is_asked_for_by(number, worker)
        if not is_notice or self._notice.is_by(number):
            worker.signal(number)
        elif is_new or number == signal.SIGUSR1:
            self._give_notice(worker)
        if is_new and number in ENDS and number not in self._ignored and worker.verdict is None:
            self.is_ended_by_launcher = self._console.is_launchers(sender)
            self.first_end = self.first_end or (f"{name_of(number)} from {described(sender)}", name_of(number))
            self._before_telling(self.is_ended_by_launcher)
            self._console.say_ended(name_of(number), sender, has_trained=worker.board.read().step > 0)
            if number == signal.SIGTERM and is_notice:  # the worker has not got it yet
                worker.let_save(number, within=self._script_saves_within)
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
        """Tell a script to save if its time limit is near."""
        if self._notice.is_due(worker):
            self._console.say_once("the time limit is near: the script is told to save")
            self._give_notice(worker)

    def _give_notice(self, worker: Worker) -> None:
        if error := self._notice.give(worker):
            self._console.say(error)
