"""When a group's ranks make a blocking MPI call instead of a non-blocking one.

Some MPIs have faster algorithms for the blocking call. It cannot be given up while a rank is missing, it spins, and all
ranks have to make the same one. So it is made only when all ranks have arrived, and have agreed in a small reduction that
each one's core is its own, that its program does not compute meanwhile, and that it makes no blocking call for another
group: two ranks that each wait in another group's call would wait for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from mpi4py import MPI

from runner.comm.mpi.engine import Engine
from runner.comm.mpi.tasks import Order, Request

# Vendor: the calls whose blocking form is faster by more than the agreement takes (6 µs), from so many bytes on.
# Measured with 2 ranks on one host, the non-blocking call in multiples of the blocking one. Open MPI 4.1.4 and 5.0.11:
# allreduce 3.5 at 4 KiB, 1.6 at 64 KiB, 2.0 at 1 MiB, 2.6 at 16 MiB; allgather 1.7 at 64 KiB, 1 to 4 at 1 MiB, 1.1 at
# 16 MiB; reduce_scatter, broadcast and alltoall 0.8 to 1.1. MPICH 5 and Intel MPI 2021: 0.9 to 1.1 for all of them.
_FASTER = {"Open MPI": {"allreduce": 1 << 15, "allgather": 1 << 14}}
_NEVER = 1 << 62


class Blocking:
    """Of one group."""

    def __init__(self, engine: Engine, order: Order, comm: MPI.Intracomm) -> None:
        self._engine, self._order, self._comm = engine, order, comm
        # On all ranks the same: the ranks of an MPI job have one MPI, and know alike whether hosts are crowded.
        self._faster = {} if engine.cores.crowded or comm.size == 1 else _FASTER.get(MPI.get_vendor()[0], {})
        self._refused = bytearray(1)
        self._requests: list[MPI.Prequest] = []
        if self._faster:
            with contextlib.suppress(NotImplementedError):  # Open MPI 4 has no persistent collectives
                self._requests = [comm.Allreduce_init(*self._vote()), comm.Barrier_init()]

    def _vote(self) -> tuple[Any, ...]:
        return MPI.IN_PLACE, [self._refused, MPI.UNSIGNED_CHAR], MPI.MAX

    def free(self) -> None:
        """Before the communicator is."""
        for request in self._requests:
            with contextlib.suppress(MPI.Exception):  # it is open: then it stays in MPI
                request.Free()

    def is_faster(self, call: str, size: int) -> bool:
        """Whether the blocking call of so many bytes is worth an agreement."""
        return size >= self._faster.get(call, _NEVER)

    def is_agreed(self) -> Generator[Request, None, bool]:
        """Whether all ranks make a blocking call now. It is lent until the task is over."""
        engine = self._engine
        can = engine.lent_to in (None, self._order) and not (
            engine.is_beside_computing() or engine.cores.own().is_wanted_by_other_processes()
        )
        if can:
            engine.lent_to = self._order
        self._refused[0] = not can
        vote = self._started(0) or self._comm.Iallreduce(*self._vote())
        yield vote
        # A rank that has given up meanwhile does not come to this barrier, and nobody makes the call without it.
        barrier = self._started(1) or self._comm.Ibarrier()
        yield _WhereItMayBlock(engine, barrier)
        if self._refused[0] and engine.lent_to is self._order:
            engine.lent_to = None
        return not self._refused[0]

    def _started(self, number: int) -> MPI.Prequest | None:
        if not self._requests:
            return None
        self._requests[number].Start()
        return self._requests[number]


class _WhereItMayBlock:
    """A request that is done only in a thread that waits anyway, not in one that asks for an asynchronous call."""

    def __init__(self, engine: Engine, request: MPI.Request) -> None:
        self._engine, self._request = engine, request

    def Test(self) -> bool:
        return self._engine.may_block and bool(self._request.Test())
