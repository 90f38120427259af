"""What the ranks of a group tell each other beside MPI, through the group's store: who waits in which call, and who has left.

Nothing is told while all goes well: a rank says a word when it has waited for a while, and when it leaves the group.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import DistBackendError

if TYPE_CHECKING:
    from runner.comm.mpi.engine import Task

_PATIENCE = timedelta(seconds=5)  # with the store
_NAMED = 256  # ranks that are asked for by name; of larger groups only the number is told
_ASKED_EVERY = 1.0  # seconds between questions who has left
_HINT = "it is missing, slow, or in another call; allow more with --collective-timeout or init_process_group(timeout=…)"


class Members:
    """Those of a group.

    Args:
        store: the group's.
        ranks: the job's ranks that are members, in the order of their ranks in the group.
        own: this rank's place among them.
        ended: asks which of the job's ranks have come to their end.
    """

    def __init__(self, store: Any, ranks: Sequence[int], own: int, ended: Callable[[], list[int]]) -> None:
        self._ranks, self._own, self._ended = ranks, own, ended
        self._store = _handle(store)
        self._asking = threading.Lock()
        self._told = 0  # the last collective of which this rank has said that it waits in it
        self._gone: list[int] = []
        self._asked = 0.0
        self.noticed = 0.0  # when somebody was first known to have left

    def leave(self) -> None:
        """Say that this rank will make no more calls."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"left/{self._store.add('left', 1)}", str(self._ranks[self._own]))

    def say_that_this_rank_waits(self, task: Task) -> None:
        if task.order is None or task.order.number == self._told:
            return
        self._told = task.order.number
        with contextlib.suppress(RuntimeError):
            place = self._store.add(f"waits/{self._told}", 1)
            self._store.set(f"waits/{self._told}/{place}", str(self._ranks[self._own]))

    def somebody_has_left(self, task: Task) -> bool:
        """Whether one whom a task needs is known to have left. Asks the store from time to time."""
        with self._asking:
            if time.monotonic() - self._asked > _ASKED_EVERY:
                with contextlib.suppress(RuntimeError):
                    gone = {*self._named("left"), *self._ended()}
                    self._gone = [rank for rank in self._ranks if rank in gone and rank != self._ranks[self._own]]
                if self._gone and not self.noticed:
                    self.noticed = time.monotonic()
                self._asked = time.monotonic()
        return bool(self._needed_and_gone(task))

    def too_late(self, task: Task, limit: float) -> DistBackendError:
        return DistBackendError(
            f"{task.what}: Timed out waiting {limit * 1000:.0f}ms for {self._missing(task)}; {_HINT}"
        )

    def will_not_end(self, task: Task) -> DistBackendError:
        gone = self._needed_and_gone(task)
        verb = "has" if len(gone) == 1 else "have"
        return DistBackendError(
            f"{task.what}: rank {_listed(gone)} {verb} ended or left the group while this rank waits"
        )

    def _needed_and_gone(self, task: Task) -> list[int]:
        if task.order is not None:
            return self._gone
        return [rank for rank in self._gone if task.peer >= 0 and self._ranks[task.peer] == rank]

    def _missing(self, task: Task) -> str:
        """Who has not said that he waits in the same call."""
        if task.order is None:
            return "any rank" if task.peer < 0 else f"rank {self._ranks[task.peer]}"
        with contextlib.suppress(RuntimeError):
            if len(self._ranks) > _NAMED:
                waiting = self._store.add(f"waits/{task.order.number}", 0)
                return f"{len(self._ranks) - waiting} of {len(self._ranks)} ranks"
            waiting = {*self._named(f"waits/{task.order.number}"), self._ranks[self._own]}
            if missing := [rank for rank in self._ranks if rank not in waiting]:
                return f"rank {_listed(missing)}"
        return "the other ranks"

    def _named(self, what: str) -> list[int]:
        """The ranks that have said something."""
        return [int(self._store.get(f"{what}/{place + 1}")) for place in range(min(self._store.add(what, 0), _NAMED))]


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"


def _handle(store: Any) -> Any:
    """A connection of our own where the store can give one: another thread may be waiting on the group's."""
    try:
        handle = store.clone()
    except (RuntimeError, NotImplementedError):
        return store
    handle.set_timeout(_PATIENCE)
    return handle
