"""A collective or a message on its way, and the order of a communicator's collectives."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol

from mpi4py import MPI
from torch.distributed import DistBackendError

from runner.comm.mpi.members import Members


class Request(Protocol):
    """What a step waits for; MPI's requests are such."""

    def Test(self) -> bool:
        """Whether it is done."""


Steps = Generator[Request, None, None]


class Task:
    """A collective or a message on its way.

    Args:
        what: how messages name it.
        steps: the MPI calls; what they hold is held until MPI is done with it.
        limit: seconds that it may take.
        members: of its communicator.
        order: a collective's.
        peer: the group's rank at a message's other end, -1 if any may be.
    """

    __slots__ = (
        *("began", "deadline", "error", "is_over", "limit", "members", "on_end"),
        "order",
        "peer",
        "request",
        "steps",
        "what",
    )

    def __init__(
        self, what: str, steps: Steps, limit: float, members: Members, order: Order | None = None, peer: int = -1
    ) -> None:
        self.what, self.steps, self.limit = what, steps, limit
        self.members, self.order, self.peer = members, order, peer
        self.began = time.monotonic()
        # A message may be posted long before it can come: its limit counts from the first wait for it.
        self.deadline = math.inf if order is None else self.began + limit
        self.request: Request | None = None
        self.error: Exception | None = None
        self.is_over = False
        self.on_end: Callable[[], None] | None = None  # tells those who wait for it by a future

    def is_awaited(self) -> None:
        """Somebody waits for it from now on."""
        if self.deadline == math.inf:
            self.deadline = time.monotonic() + self.limit

    def move_on(self, looks: int = 1) -> bool:
        """Take it as far as it goes without waiting, but for so many looks. Returns whether it has ended."""
        while True:
            # What a signal's handler raises in a test goes to the program, and the task goes on; in a step it ends the steps.
            try:
                if self.request is not None:
                    for _ in range(looks):
                        if self.request.Test():
                            break
                    else:
                        return False
            except MPI.Exception as error:
                self.error = error
                break
            try:
                self.request = next(self.steps)
            except StopIteration:
                break
            except Exception as error:
                self.error = error
                break
            except BaseException:
                self.error = DistBackendError(f"{self.what}: interrupted")
                raise
        self.request = None
        return True


class Order:
    """The collectives of one communicator."""

    def __init__(self) -> None:
        self.broken: Exception | None = None  # why no more can be made: the ranks no longer agree on where they are
        self.under_way: Task | None = None
        self.number = 0  # of the one under way
        self.telling: list[int] = []  # the threads that run callbacks of one that is done
        self._waiting: deque[Task] = deque()
        self._of_callbacks: deque[Task] = deque()

    def is_idle(self) -> bool:
        return self.under_way is None and not (self._waiting or self._of_callbacks or self.telling)

    def add(self, task: Task) -> None:
        is_callbacks = bool(self.telling) and threading.get_ident() in self.telling
        (self._of_callbacks if is_callbacks else self._waiting).append(task)

    def oldest(self) -> Task | None:
        """The one under way, or the first that waits."""
        waiting = [*list(self._of_callbacks)[:1], *list(self._waiting)[:1]]
        return self.under_way or (waiting[0] if waiting else None)

    def next(self) -> Task | None:
        """The one to be carried on, which may be begun only now."""
        if self.under_way is None and self.broken is None:
            queue = self._of_callbacks or (None if self.telling else self._waiting)
            if not queue:
                return None
            self.under_way = queue[0]  # before it is taken out, so that nobody finds nothing to do here
            queue.popleft()
            self.number += 1
        return self.under_way

    def give_up(self, error: Exception) -> list[Task]:
        """Nothing more can be made. Returns what was to be, first what has been begun."""
        self.broken = error
        left = [*([self.under_way] if self.under_way else []), *self._of_callbacks, *self._waiting]
        self.under_way = None
        self._of_callbacks.clear()
        self._waiting.clear()
        return left
