"""Facts that a group's ranks exchange through its store, not by MPI: the call in which a rank waits, and the ranks that have left.

A rank writes to the store only after it has waited for a while, and when it leaves the group. Requests to the store may take
seconds if it cannot be reached.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from torch.distributed import DistBackendError

_PATIENCE = timedelta(seconds=5)  # the store's time limit
_NAMED = 256  # ranks that are looked up one by one, at most
_ASKED_EVERY = 1.0  # seconds between two looks for ranks that have left
_HINT = "it is missing, slow, or in another call; allow more with --collective-timeout or init_process_group(timeout=…)"


class AwaitedCall(NamedTuple):
    """A collective or a message that a rank waits in.

    Attributes:
        number: of the collective, among those of its group; None for a message.
        peer: a message's other rank in the group, -1 for any.
    """

    what: str
    number: int | None
    peer: int


class Members:
    """The members of a group.

    Args:
        store: the group's store, with no key of an earlier group in it.
        ranks: the members' ranks in the job, in the order of their ranks in the group.
        own: this rank's index among them.
    """

    def __init__(self, store: Any, ranks: Sequence[int], own: int) -> None:
        self._groups_store, self.ranks, self._own = store, ranks, own
        self._handle: Any = None
        self._asking = threading.Lock()
        self._told = 0  # the last collective in which this rank has reported that it waits
        self._left: dict[int, tuple[int, float]] = {}  # rank: (number of collectives made, when this was noticed)
        self._asked = 0.0

    def leave(self, made: int) -> None:
        """Record that this rank makes no more calls in the group, and how many collectives it has made."""
        with contextlib.suppress(RuntimeError):
            place = self._groups_store.add("left", 1)
            self._groups_store.set(f"left/{place}", f"{self.ranks[self._own]} {made}")

    def say_that_this_rank_waits(self, number: int) -> None:
        """Record in which collective."""
        if number != self._told:
            self._told = number
            with contextlib.suppress(RuntimeError):
                self._store.set(f"waits/{self.ranks[self._own]}", str(self._told))

    def noticed(self, call: AwaitedCall) -> float:
        """Return the time (time.monotonic()) at which a needed rank was noticed to have left; infinity if none has."""
        with self._asking:
            if time.monotonic() - self._asked > _ASKED_EVERY:
                with contextlib.suppress(RuntimeError):
                    for place in range(len(self._left), min(self._store.add("left", 0), _NAMED)):
                        rank, number = map(int, self._store.get(f"left/{place + 1}").split())
                        self._left[rank] = number, time.monotonic()
                self._asked = time.monotonic()
        return min((self._left[rank][1] for rank in self._missed(call)), default=math.inf)

    def too_late(self, call: AwaitedCall, limit: float) -> DistBackendError:
        """The error that a call was not done within ``limit`` seconds."""
        waited = f"{call.what}: Timed out waiting {limit * 1000:.0f}ms"
        return DistBackendError(f"{waited} for {self._missing(call)}; {_HINT}")

    def will_not_end(self, call: AwaitedCall) -> DistBackendError:
        missed = self._missed(call)
        verb = "has" if len(missed) == 1 else "have"
        return DistBackendError(f"{call.what}: rank {listed(missed)} {verb} left the group while this rank waits")

    def _missed(self, call: AwaitedCall) -> list[int]:
        """Ranks that a call needs and that have left before they took part in it."""
        if call.number is not None:
            return [rank for rank, (number, _) in self._left.items() if number < call.number]
        return [rank for rank in self._left if call.peer >= 0 and self.ranks[call.peer] == rank]

    def _missing(self, call: AwaitedCall) -> str:
        """The ranks that have not reported that they wait in the same call, as text."""
        if call.number is None:
            return "any rank" if call.peer < 0 else f"rank {self.ranks[call.peer]}"
        if len(self.ranks) <= _NAMED:
            with contextlib.suppress(RuntimeError):
                others = [rank for place, rank in enumerate(self.ranks) if place != self._own]
                if missing := [rank for rank in others if self._waits_in(rank) < call.number]:
                    return f"rank {listed(missing)}"
        return "the other ranks"

    def _waits_in(self, rank: int) -> int:
        """The number of the last collective in which a rank has reported that it waits."""
        key = f"waits/{rank}"
        return int(self._store.get(key)) if self._store.check([key]) else 0

    @property
    def _store(self) -> Any:
        """A separate connection, if the store can be cloned: another thread may wait on the group's own."""
        if self._handle is None:
            try:
                self._handle = self._groups_store.clone()
                self._handle.set_timeout(_PATIENCE)
            except (RuntimeError, NotImplementedError):  # a store of another kind, or out of reach
                self._handle = self._groups_store
        return self._handle


def listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
