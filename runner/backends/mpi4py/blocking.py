"""The choice between a blocking and a non-blocking MPI call, which a group's ranks make together.

Some MPIs have faster algorithms for the blocking call. But it cannot be given up while a rank is missing, it spins, and all
ranks have to make the same call. So it is made only after all ranks have arrived and agreed on it in a small reduction. A
rank agrees if its core is not shared, if its program does not compute meanwhile, and if it makes no blocking call for
another group (two ranks in blocking calls of different groups could wait for each other for ever).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from mpi4py import MPI

from runner.backends.mpi4py.engine import ProgressEngine
from runner.backends.mpi4py.tasks import Order, PendingRequest

# Vendor: the calls whose blocking form saves more than the agreement costs (6 µs), and from how many bytes on.
# Measured with 2 ranks on one host: the non-blocking call's time ÷ the blocking one's. Open MPI 4.1.4 and 5.0.11:
# allreduce 3.5 at 4 KiB, 1.6 at 64 KiB, 2.0 at 1 MiB, 2.6 at 16 MiB; allgather 1.7 at 64 KiB, 1 to 4 at 1 MiB, 1.1 at
# 16 MiB; reduce_scatter, broadcast and alltoall 0.8 to 1.1. MPICH 5 and Intel MPI 2021: 0.9 to 1.1 for all of them.
_FASTER = {"Open MPI": {"allreduce": 1 << 15, "allgather": 1 << 14}}
_NEVER = 1 << 62


class Blocking:
    """The blocking calls of one group."""

    def __init__(self, engine: ProgressEngine, order: Order, comm: MPI.Intracomm) -> None:
        self._engine, self._order, self._comm = engine, order, comm
        # The same on all ranks: they have the same MPI, and the same value of ``crowded``.
        self._faster = {} if engine.cores.crowded or comm.size == 1 else _FASTER.get(MPI.get_vendor()[0], {})
        self._refused = bytearray(1)
        self._requests: list[MPI.Prequest] = []
        if self._faster:
            with contextlib.suppress(NotImplementedError):  # Open MPI 4 has no persistent collectives
                self._requests = [comm.Allreduce_init(*self._vote()), comm.Barrier_init()]

    def _vote(self) -> tuple[Any, ...]:
        return MPI.IN_PLACE, [self._refused, MPI.UNSIGNED_CHAR], MPI.MAX

    def free(self) -> None:
        """Free the persistent requests; call it before the communicator is freed."""
        for request in self._requests:
            with contextlib.suppress(MPI.Exception):  # an active request is left to MPI
                request.Free()

    def is_faster(self, call: str, size: int) -> bool:
        """Whether a blocking call with ``size`` bytes is worth an agreement."""
        return size >= self._faster.get(call, _NEVER)

    def is_agreed(self) -> Generator[PendingRequest, None, bool]:
        """Whether all ranks make a blocking call now. If so, ``engine.reserved_for`` is the group's order until it is done."""
        engine = self._engine
        can = engine.reserved_for in (None, self._order) and not (
            engine.is_beside_computing() or engine.cores.own().is_wanted_by_other_processes()
        )
        if can:
            engine.reserved_for = self._order
        self._refused[0] = not can
        vote = self._started(0) or self._comm.Iallreduce(*self._vote())
        yield vote
        # A rank that has given up meanwhile does not enter this barrier, so no rank makes the call without it.
        barrier = self._started(1) or self._comm.Ibarrier()
        yield _WhereItMayBlock(engine, barrier)
        if self._refused[0] and engine.reserved_for is self._order:
            engine.reserved_for = None
        return not self._refused[0]

    def _started(self, number: int) -> MPI.Prequest | None:
        if not self._requests:
            return None
        self._requests[number].Start()
        return self._requests[number]


class _WhereItMayBlock:
    """A request that completes only in a thread that waits anyway, not in one that begins an asynchronous call."""

    def __init__(self, engine: ProgressEngine, request: MPI.Request) -> None:
        self._engine, self._request = engine, request

    def Test(self) -> bool:
        return self._engine.may_block and bool(self._request.Test())
