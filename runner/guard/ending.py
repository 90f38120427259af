"""How a guard comes to the decision about its worker's end: the facts that it collects, and the waits for others."""

from __future__ import annotations

import time

from runner.guard.decision import SILENTLY, Awaited, Decision, Facts, WorkerEnd, decide
from runner.guard.link.messages import Done, Returned
from runner.guard.watch import Watch

_ROUND = 1.0  # seconds between two looks at what is waited for
_CAUSE = 0.5  # seconds in which another rank may say why this one has ended: its MPI may have ended it


class Ending:
    """Waits for, and collects, the facts about one worker's end."""

    def __init__(self, watch: Watch, end: WorkerEnd) -> None:
        self._watch, self._words, self._end, self._attempt = watch, watch.words, end, watch.attempt
        self._has_spoken = False
        self._until: dict[Awaited, float] = {}  # when the waits for them are over
        self._waited_out: set[Awaited] = set()

    def conclude(self) -> Decision:
        """Say what the end means, and wait for what may change that; at last the decision."""
        watch, has_ended = self._watch, self._end.status is not None
        if has_ended:
            self._speak()
        while (decision := self._decide()).waits_for:
            self._tell_done(decision)
            self._wait_for(decision.waits_for)
        self._tell_done(decision)
        if has_ended and watch.restarts.most:  # what came as it was seen that nobody is waited for
            watch.receive_from_others()
            decision = self._decide()
        return decision

    def _decide(self) -> Decision:
        """The decision by what is known now."""
        attempt, restarts, signals = self._attempt, self._watch.restarts, self._watch.signals
        events, peers = self._watch.events, self._watch.peers
        return decide(
            Facts(
                end=self._end,
                size=self._words.size,
                how_to_resume=self._words.how_to_resume,
                attempt=restarts.attempt,
                restarts=restarts.most,
                may_restart=restarts.is_possible,
                is_recorded=self._watch.files is not None,
                said=self._watch.console.said,
                has_spoken=self._has_spoken,
                waited_out=frozenset(self._waited_out),
                follows=attempt.follows,
                hang_is_reported=attempt.hang.is_reported,
                has_lost_launcher=events.is_orphan,
                is_ended_by_signal=signals.has_ended_it,
                is_ended_by_launcher=signals.is_ended_by_launcher,
                is_told_by_another=attempt.others.have_left_before(self._words.rank),
                is_reached=peers.are_reached,
                present=frozenset(peers.present - {self._words.rank}),
                unfinished=frozenset(restarts.unfinished(peers.known(attempt.worker.rendezvous_at))),
            )
        )

    def _speak(self) -> None:
        """Print what is to be said of the end, once it is known whether others do."""
        if (decision := self._decide()).tells_return:
            self._watch.peers.tell(Returned(self._attempt.number, SILENTLY))
        while decision.waits_for is Awaited.CAUSE:
            self._wait_for(decision.waits_for)
            decision = self._decide()
        if message := self._words.no_rendezvous(decision.code) if decision.needs_reason else decision.message:
            self._watch.console.say(message, fix=decision.fix)
        self._watch.say_for_another()
        self._has_spoken = True

    def _tell_done(self, decision: Decision) -> None:
        """Tell the others, once, that this rank has ended well."""
        if decision.tells_done and self._watch.restarts.finish():
            self._watch.peers.tell(Done(self._attempt.number))

    def _wait_for(self, awaited: Awaited) -> None:
        """Wait until there is news, if it may still come."""
        watch, worker = self._watch, self._attempt.worker
        if (left := self._left(awaited)) <= 0:
            self._waited_out.add(awaited)
        elif awaited is Awaited.EARLIER_FAILURE:
            watch.events.wait_for_messages(left)
            watch.receive_from_others()
        elif awaited is Awaited.CAUSE:
            watch.events.wait(left)
            watch.take_events()
        else:
            watch.events.wait(left)
            worker.look_at_group()
            watch.take_events()
            watch.say_for_another()
            watch.look_for_a_hang()

    def _left(self, awaited: Awaited) -> float:
        """Seconds for which it is waited at most; 0 where it cannot come."""
        if awaited is Awaited.PEERS:
            return _ROUND
        if awaited is Awaited.HANG_REPORT:
            return _ROUND if self._attempt.hang.waits() else 0.0
        now, peers = time.monotonic(), self._watch.peers
        may_come = peers.are_reached if awaited is Awaited.CAUSE else bool(peers.present)
        return self._until.setdefault(awaited, now + (_CAUSE if may_come else 0.0)) - now
