"""A worker that has not met the other ranks yet: what is said about it, and when it waits in vain."""

from __future__ import annotations

from runner.base.errors import EXIT_USAGE
from runner.guard.console import Console
from runner.guard.hang import Hang, Patience
from runner.guard.settings import Watched, Words
from runner.guard.strangers import Strangers
from runner.guard.worker import GRACE, Worker
from runner.launch.siblings import HOW_TO_START

# Seconds after which a worker that does not look for the others is slow: it only reads a few files before.
_STARTING = 20.0


class Meeting:
    """Of one worker with the others."""

    def __init__(
        self, worker: Worker, patience: Patience, hang: Hang, words: Words, console: Console, watched: Watched
    ) -> None:
        self._worker, self._patience, self._hang, self._words, self._console = worker, patience, hang, words, console
        self._slow_after = min(_STARTING, watched.rendezvous_timeout / 2)
        self._is_first_on_host = watched.is_first_on_host
        self._is_slow = False  # that it starts slowly was said
        self._strangers = Strangers(words.find_siblings)

    def look(self) -> None:
        """Say where the worker is if it starts slowly, and end a wait for ranks that will never come."""
        self._look_for_a_slow_start()
        if self._worker.has_started and not self._worker.rendezvous_at and self._words.size > 1:
            self._look_for_other_programs()

    def say_that_it_is_late(self) -> None:
        """Print that its time is over."""
        if self._worker.has_started and self._strangers.known:
            self._console.say(f"has not met all other ranks: {self._strangers.known}", fix=HOW_TO_START)
        elif self._worker.has_started:
            self._console.say(self._words.no_rendezvous(None))
        else:
            self._console.say("has not started in time", fix="allow more with --timeout")
        # Last: it may take two seconds, and the launcher may end this guard.
        self._console.complain(f"it was in {self._hang.place()}")

    def _look_for_a_slow_start(self) -> None:
        """Say where the worker is that does not look for the other ranks: they know only that it is absent."""
        if self._is_slow or self._worker.has_started or self._patience.is_stopped:
            return
        if self._patience.watched > self._slow_after:
            self._is_slow = True
            if self._worker.process:
                self._console.complain(f"has not started yet: it is in {self._hang.place()}")
            elif self._is_first_on_host:  # its host's ranks wait for the same
                self._console.complain(f"has not started yet: what it needs is being imported, in {self._hang.place()}")

    def _look_for_other_programs(self) -> None:
        """End a wait for ranks that will never meet this one, and name those that may not."""
        if (news := self._strangers.look()) is None:
            return
        text, is_certain = news
        if text and is_certain:
            self._console.say(text, fix=HOW_TO_START, is_named=False)
        elif text:
            self._console.complain(text)
        if is_certain:
            self._worker.end(EXIT_USAGE, 0.0 if text else GRACE)  # the launcher ends all when the first has ended
