"""An attempt of a rank: its worker, and the guard's facts about it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from runner.guard.decision import WorkerEnd
from runner.guard.hang.collectives import Requests
from runner.guard.hang.hang import BusyRanks, Hang, Patience
from runner.guard.link.meeting import Meeting
from runner.guard.link.messages import Reason
from runner.guard.link.others import Others
from runner.guard.link.peers import Peers
from runner.guard.process.child import Child
from runner.guard.process.worker import Worker
from runner.guard.report.console import Console
from runner.guard.settings import Watched, Words


class WorkerAttempt:
    """The time from a worker's start until all ranks start again or end."""

    def __init__(
        self,
        child: Child,
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
        requests = Requests(child.requests, child.answers) if words.size > 1 else None
        self.number, self.worker = number, Worker(child, watched.rendezvous_timeout)
        self.patience = Patience(lambda: child.shown[0], child.board, watched, requests)
        calls = requests.take if requests else list
        self.hang = Hang(lambda: child.shown, words.rank, words.size, calls, number)
        self.meeting = Meeting(self.worker, self.patience, self.hang, words, console, watched)
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
