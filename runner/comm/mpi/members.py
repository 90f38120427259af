"""What a group's ranks tell each other through its store, and not by MPI: which call a rank waits in, and who has left.

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
from typing import TYPE_CHECKING, Any

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from runner.comm.mpi.tasks import Order, Task

_PATIENCE = timedelta(seconds=5)  # the store's time limit
_NAMED = 256  # ranks that are looked up one by one, at most
_ASKED_EVERY = 1.0  # seconds between two looks for ranks that have left
_HINT = "it is missing, slow, or in another call; allow more with --collective-timeout or init_process_group(timeout=…)"


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

    def leave(self, order: Order) -> None:
        """Record that this rank makes no more calls in the group, and how many collectives it has made."""
        made = order.number - (order.broken is not None)  # if broken, the last one was given up
        with contextlib.suppress(RuntimeError):
            place = self._groups_store.add("left", 1)
            self._groups_store.set(f"left/{place}", f"{self.ranks[self._own]} {made}")

    def say_that_this_rank_waits(self, task: Task) -> None:
        order = task.order
        if order is not None and order.under_way is task and order.number != self._told:
            self._told = order.number
            with contextlib.suppress(RuntimeError):
                self._store.set(f"waits/{self.ranks[self._own]}", str(self._told))

    def noticed(self, task: Task) -> float:
        """When it was noticed that a rank that a task needs has left (time.monotonic()); infinity if none has."""
        with self._asking:
            if time.monotonic() - self._asked > _ASKED_EVERY:
                with contextlib.suppress(RuntimeError):
                    for place in range(len(self._left), min(self._store.add("left", 0), _NAMED)):
                        rank, number = map(int, self._store.get(f"left/{place + 1}").split())
                        self._left[rank] = number, time.monotonic()
                self._asked = time.monotonic()
        return min((self._left[rank][1] for rank in self._missed(task)), default=math.inf)

    def too_late(self, task: Task, limit: float) -> DistBackendError:
        """The error that a task was not done within ``limit`` seconds."""
        waited = f"{task.what}: Timed out waiting {limit * 1000:.0f}ms"
        return DistBackendError(f"{waited} for {self._missing(task)}; {_HINT}")

    def will_not_end(self, task: Task) -> DistBackendError:
        missed = self._missed(task)
        verb = "has" if len(missed) == 1 else "have"
        return DistBackendError(f"{task.what}: rank {listed(missed)} {verb} left the group while this rank waits")

    def _missed(self, task: Task) -> list[int]:
        """Ranks that a task needs and that have left before they took part in it."""
        if task.order is not None:
            return [rank for rank, (number, _) in self._left.items() if number < task.order.number]
        return [rank for rank in self._left if task.peer >= 0 and self.ranks[task.peer] == rank]

    def _missing(self, task: Task) -> str:
        """The ranks that have not reported that they wait in the same call, as text."""
        if task.order is None:
            return "any rank" if task.peer < 0 else f"rank {self.ranks[task.peer]}"
        if len(self.ranks) <= _NAMED:
            with contextlib.suppress(RuntimeError):
                others = [rank for place, rank in enumerate(self.ranks) if place != self._own]
                if missing := [rank for rank in others if self._waits_in(rank) < task.order.number]:
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
