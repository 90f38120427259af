"""When a group's ranks make a blocking MPI call instead of a non-blocking one.

Some MPIs have faster algorithms for the blocking call. It cannot be given up while a rank is missing, it spins, and all
ranks have to make the same one. So it is made only when all ranks have arrived, and have agreed in a small reduction that
each one's core is its own and that it makes no blocking call for another group meanwhile: two ranks that each wait in
another group's call would wait for ever.
"""

from __future__ import annotations

from collections.abc import Generator

from mpi4py import MPI

from runner.comm.mpi.engine import Engine
from runner.comm.mpi.tasks import Order, Request

# Vendor: the calls whose blocking form is faster by more than the agreement takes (4 µs), from so many bytes to so many.
# Measured with 2 ranks on one host, the non-blocking call in multiples of the blocking one. Open MPI 4.1.4 and 5.0.11:
# allreduce 3.5 at 4 KiB, 1.6 at 64 KiB, 2.0 at 1 MiB, 2.6 at 16 MiB; allgather 1.7 at 64 KiB, 0.9 to 1.2 from 1 MiB on;
# reduce_scatter, broadcast and alltoall 0.8 to 1.1. MPICH 5 and Intel MPI 2021: 0.9 to 1.1 for all of them.
_FASTER = {"Open MPI": {"allreduce": (1 << 15, 1 << 62), "allgather": (1 << 16, 1 << 19)}}


class Blocking:
    """Of one group."""

    def __init__(self, engine: Engine, order: Order, comm: MPI.Intracomm) -> None:
        self._engine, self._order, self._comm = engine, order, comm
        # On all ranks the same: the ranks of an MPI job have one MPI, and know alike whether hosts are crowded.
        self._faster = {} if engine.cores.crowded or comm.size == 1 else _FASTER.get(MPI.get_vendor()[0], {})

    def is_agreed(self, call: str, size: int) -> Generator[Request, None, bool]:
        """Whether all ranks make a blocking call of so many bytes now. It is lent until the task is over."""
        least, most = self._faster.get(call, (1, 0))
        if not least <= size <= most:
            return False
        engine = self._engine
        can = engine.lent_to in (None, self._order) and not engine.cores.own().is_wanted_by_other_processes()
        if can:
            engine.lent_to = self._order
        refusals = bytearray([not can])
        yield self._comm.Iallreduce(MPI.IN_PLACE, [refusals, MPI.UNSIGNED_CHAR], MPI.MAX)
        # A rank that has given up meanwhile does not come to this barrier, and nobody makes the call without it.
        yield _WhereItMayBlock(engine, self._comm.Ibarrier())
        if refusals[0] and engine.lent_to is self._order:
            engine.lent_to = None
        return not refusals[0]


class _WhereItMayBlock:
    """A request that is done only in a thread that waits anyway, not in one that asks for an asynchronous call."""

    def __init__(self, engine: Engine, request: MPI.Request) -> None:
        self._engine, self._request = engine, request

    def Test(self) -> bool:
        return self._engine.may_block and bool(self._request.Test())
