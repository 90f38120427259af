"""An attempt of a rank: its worker, the guard's facts about it, and its wait for the other ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence

from runner.base.errors import EXIT_USAGE
from runner.guard.decision import WorkerEnd
from runner.guard.hang.collectives import Requests
from runner.guard.hang.hang import BusyRanks, Hang, Patience
from runner.guard.link.messages import Reason
from runner.guard.link.peers import Others, Peers
from runner.guard.process.worker import GRACE_SECONDS, Worker
from runner.guard.report.console import Console
from runner.guard.settings import Watched, Words
from runner.launch.siblings import HOW_TO_START, OtherProgram, Siblings

# Seconds after which a worker that does not look for the others is slow: it only reads a few files before.
_START_SECONDS = 20.0
_FIRST_LOOK, _LAST_LOOK = 3.0, 90.0  # seconds of waiting for the other ranks
_GROWTH = 1.5  # of the time until the next look
_REMARK_SECONDS = 10.0  # seconds of waiting after which a program that may yet start the runner is named
_SO_FAR = "runs another program so far"
_NAMED = 3  # ranks in a message


class WorkerAttempt:
    """The time from a worker's start until all ranks start again or end."""

    def __init__(
        self,
        worker: Worker,
        number: int,
        words: Words,
        watched: Watched,
        *,
        console: Console,
        peers: Peers,
        hosts: Mapping[int, str | None],
    ) -> None:
        """Begin.

        Args:
            number: how often the ranks were started again.
            hosts: of the ranks, as far as they are known.
        """
        requests = Requests(worker.requests, worker.answers) if words.size > 1 else None
        self.number, self.worker = number, worker
        self.patience = Patience(lambda: worker.shown[0], worker.board, watched, requests)
        calls = requests.take if requests else list
        self.hang = Hang(lambda: worker.shown, words.rank, words.size, calls, number)
        self.meeting = Meeting(self, words, console, watched)
        self.busy = BusyRanks(peers, self.patience, number)
        self.others = Others(words, hosts, console)
        self.follows = False  # another rank has failed
        self.is_without_proxy = False  # the process that the launcher had started was killed
        self._was_lost_early = False

    def lost(self) -> Reason | None:
        """Why the worker counts as hung, once; ``hang`` knows it from then on."""
        has_met = self.worker.rendezvous_at is not None
        reason = None if self.hang.is_own else self.patience.lost(has_met=has_met)
        if reason is None:
            return None
        self._was_lost_early = not has_met
        return self.hang.begin(reason)

    def end(self, status: int | None, passed_on: set[int]) -> WorkerEnd:
        """How the worker has ended.

        Args:
            status: as waitpid() returns it; None: not even SIGKILL has ended it.
            passed_on: the signals that the guard has got for it.
        """
        worker, progress = self.worker, self.worker.board.read()
        is_killed = status is not None and os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        return WorkerEnd(
            status=status,
            verdict=worker.verdict,
            ends_everywhere=worker.is_everywhere,
            has_said=worker.has_said,
            said_signal=worker.said_signal,
            passed_on=frozenset(passed_on),
            is_killed_for_memory=is_killed and worker.has_lacked_memory(),
            is_hung=self.hang.is_own,
            all_end_with=self.others.ends_with,
            has_met=worker.rendezvous_at is not None,
            was_lost_early=self._was_lost_early,
            is_in_training=progress.is_in_training,
            step=progress.step,
        )


class Meeting:
    """A worker's rendezvous with the others. Ranks of this host that run another program will never come."""

    def __init__(self, attempt: WorkerAttempt, words: Words, console: Console, watched: Watched) -> None:
        self._worker, self._patience, self._hang = attempt.worker, attempt.patience, attempt.hang
        self._words, self._console = words, console
        self._slow_after = min(_START_SECONDS, watched.rendezvous_timeout / 2)
        self._is_first_on_host = watched.is_first_on_host
        self._is_slow = False  # that it starts slowly was said
        self._began = time.monotonic()
        self._next, self._is_remarked, self._suspected = _FIRST_LOOK, False, set[OtherProgram]()
        self._found: Siblings | None = None  # what the thread has found
        self._known = ""  # in words, what was found last
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Say where a worker is that starts slowly, and end a wait for ranks that will never come."""
        self._look_for_a_slow_start()
        if self._worker.has_started and not self._worker.rendezvous_at and self._words.size > 1:
            self._look_for_other_programs()

    def say_that_it_is_late(self) -> None:
        """Print that the worker's time is over."""
        if self._worker.has_started and self._known:
            self._console.say(f"has not met all other ranks: {self._known}", fix=HOW_TO_START)
        elif self._worker.has_started:
            self._console.say(self._words.no_rendezvous(None))
        else:
            self._console.say("has not started in time", fix="allow more with --timeout")
        # Last: it may take two seconds, and the launcher may end this guard.
        self._console.complain(f"it was in {self._hang.place()}")

    def _look_for_a_slow_start(self) -> None:
        """Say where a worker is that does not look for the other ranks yet: they know only that it is absent."""
        if self._is_slow or self._worker.has_started or self._patience.is_stopped:
            return
        if self._patience.watched > self._slow_after:
            self._is_slow = True
            if self._worker.process:
                self._console.complain(f"has not started yet: it is in {self._hang.place()}")
            elif self._is_first_on_host:  # its host's ranks wait for the same
                self._console.complain(f"has not started yet: what it needs is being imported, in {self._hang.place()}")

    def _look_for_other_programs(self) -> None:
        waited = time.monotonic() - self._began
        if self._found is not None:
            found, self._found = self._found, None
            self._judge(found, waited)
        elif waited > self._next and self._next < _LAST_LOOK and not (self._thread and self._thread.is_alive()):
            self._next = waited * _GROWTH
            # Reading of another process may hang, as one does that hangs in the kernel.
            self._thread = threading.Thread(target=self._find, daemon=True)
            self._thread.start()

    def _find(self) -> None:
        self._found = self._words.find_siblings()

    def _judge(self, found: Siblings, waited: float) -> None:
        """End a wait for ranks that will never meet this one, and name those that may not, unless another rank does."""
        self._known = _in_words(found.others)
        final = {one for one in found.others if one.is_final}
        are_certain, self._suspected = bool(final & self._suspected), final  # it is seen twice
        if are_certain:
            if found.is_speaking:
                self._console.say(_in_words(sorted(final)), fix=HOW_TO_START, is_named=False)
            # The launcher ends all when the first has ended.
            self._worker.end(EXIT_USAGE, 0.0 if found.is_speaking else GRACE_SECONDS)
        elif final:
            self._next = waited + 1.0
        elif found.others and waited > _REMARK_SECONDS and not self._is_remarked:
            self._is_remarked = True
            if found.is_speaking:
                self._console.complain(f"waits for the other ranks: {_in_words(found.others, _SO_FAR)}")


def _in_words(found: Sequence[OtherProgram], what: str = "is another program") -> str:
    """Return ``rank 1 is another program (sleep 60)`` for the first few."""
    texts = [f"rank {one.rank} {what} ({one.command})" for one in found[:_NAMED]]
    return ", ".join(texts) + (f", and {len(found) - _NAMED} more" if len(found) > _NAMED else "")
