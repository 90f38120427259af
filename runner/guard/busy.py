"""Which ranks' workers do what may take longer than a step: those that wait for them have not hung."""

from __future__ import annotations

from runner.guard.hang import Patience
from runner.guard.messages import Busy, Patient
from runner.guard.peers import Peers


class BusyRanks:
    """As rank 0's guard knows them in one attempt; on the others only whether this one is busy."""

    def __init__(self, peers: Peers, patience: Patience, attempt: int) -> None:
        self._peers, self._patience, self._attempt = peers, patience, attempt
        self._ranks = set[int]()

    def note(self, rank: int, *, is_busy: bool) -> None:
        """A worker is busy, or no longer; told where that is new."""
        if is_busy == (rank in self._ranks):
            return
        were_busy = bool(self._ranks)
        self._ranks ^= {rank}
        if not self._peers.is_middle:
            self._peers.tell(Busy(self._attempt, is_busy))
        elif were_busy != bool(self._ranks):
            self._patience.others_are_busy = not were_busy
            self._peers.tell(Patient(self._attempt, not were_busy))

    def forget_silent(self) -> None:
        """What ranks do whose guards are not heard is not known any more."""
        for rank in self._ranks & self._peers.silent:
            self.note(rank, is_busy=False)
