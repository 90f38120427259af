"""Tasks (collectives and messages that have begun or wait), and the order of a communicator's collectives."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol

from mpi4py import MPI
from torch.distributed import DistBackendError

from runner.backends.mpi4py.members import AwaitedCall, Members
from runner.base.errors import RunnerError


class PendingRequest(Protocol):
    """A request for which a step waits, such as MPI's."""

    def Test(self) -> bool:
        """Whether it is done."""


Steps = Generator[PendingRequest, None, None]


class DifferentCallsError(RunnerError, DistBackendError):
    """MPI could not do a collective, as it cannot where ranks are in different ones."""

    def __init__(self, what: str, number: int, error: MPI.Exception) -> None:
        super().__init__(
            f"{what} (collective {number} of its group) failed: {error}; other ranks are in another collective, or have given other sizes",
            fix="call the same on all ranks: what one rank does alone may not call run.sum(), state_dict() and the like",
        )


class MPITask:
    """A collective or a message.

    Args:
        what: its name in error messages.
        steps: the MPI calls; the generator keeps the buffers alive until MPI is done with them.
        limit: seconds that it may take.
        members: the members of its communicator.
        order: the order of a collective; None for a message.
        peer: a message's other rank in the group, -1 for any.
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
        # A receive may be posted long before its message is sent: its limit counts from the first wait for it.
        self.deadline = math.inf if order is None else self.began + limit
        self.request: PendingRequest | None = None
        self.error: Exception | None = None
        self.is_over = False
        self.on_end: Callable[[], None] | None = None  # completes its future

    @property
    def call(self) -> AwaitedCall:
        """The call as the group's members see it."""
        return AwaitedCall(self.what, None if self.order is None else self.order.number, self.peer)

    def is_awaited(self) -> None:
        """A thread begins to wait for it: a message's time limit begins now."""
        if self.deadline == math.inf:
            self.deadline = time.monotonic() + self.limit

    def move_on(self, looks: int = 1) -> bool:
        """Progress it without waiting, with ``looks`` tests of a request at most. Returns whether it has ended."""
        while True:
            # A signal handler's exception goes to the program. If raised in a test the task continues, in a step it fails.
            try:
                if self.request is not None:
                    for _ in range(looks):
                        if self.request.Test():
                            break
                    else:
                        return False
            except MPI.Exception as error:
                self.error = error if self.order is None else DifferentCallsError(self.what, self.order.number, error)
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
        self.broken: Exception | None = None  # why it cannot continue: the ranks may be in different collectives
        self.under_way: MPITask | None = None
        self.number = 0  # the number of the last collective begun, from 1
        self.name = ""  # that collective's
        self.telling: list[int] = []  # the threads that run callbacks of a finished collective
        self._waiting: deque[MPITask] = deque()
        self._of_callbacks: deque[MPITask] = deque()

    def is_idle(self) -> bool:
        return self.under_way is None and not (self._waiting or self._of_callbacks or self.telling)

    def add(self, task: MPITask) -> None:
        is_callbacks = bool(self.telling) and threading.get_ident() in self.telling
        (self._of_callbacks if is_callbacks else self._waiting).append(task)

    def oldest(self) -> MPITask | None:
        """The collective under way, or else the first that waits."""
        waiting = [*list(self._of_callbacks)[:1], *list(self._waiting)[:1]]
        return self.under_way or (waiting[0] if waiting else None)

    def next(self) -> MPITask | None:
        """The collective to be progressed; takes the next one if none is under way."""
        if self.under_way is None and self.broken is None:
            queue = self._of_callbacks or (None if self.telling else self._waiting)
            if not queue:
                return None
            self.under_way = queue[0]  # before popleft(), so that no other thread finds the order idle
            queue.popleft()
            self.number += 1
            self.name = self.under_way.what
        return self.under_way

    def give_up(self, error: Exception) -> list[MPITask]:
        """Break the order for good. Returns its unfinished collectives, the one under way first."""
        self.broken = error
        left = [*([self.under_way] if self.under_way else []), *self._of_callbacks, *self._waiting]
        self.under_way = None
        self._of_callbacks.clear()
        self._waiting.clear()
        return left
