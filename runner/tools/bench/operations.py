"""The operations that are timed: how torch.distributed and MPI itself are asked for them, and what they must give.

A size is, as in nccl-tests, that of the larger of a rank's two buffers: what an allgather puts out, what a
reduce_scatter takes in. Bus bandwidth is algorithm bandwidth (size over time) times the share of the data that crosses
the busiest link (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Buffers:
    """A rank's buffers: ``whole`` and ``other`` of the size in question, ``part`` a rank's share of it."""

    whole: Tensor
    other: Tensor
    part: Tensor
    rank: int
    ranks: int

    def fill(self) -> None:
        """The rank's number plus one, everywhere."""
        for tensor in (self.whole, self.other, self.part):
            tensor.fill_(self.rank + 1)
        if self.whole.is_cuda:
            torch.cuda.synchronize(self.whole.device)  # the bare MPI knows nothing of what is queued


def buffers(count: int, rank: int, ranks: int, device: torch.device) -> Buffers:
    """Float32 buffers of ``count`` elements, or of the next lower multiple of the number of ranks."""
    share = max(1, count // ranks)
    whole, other = (torch.empty(share * ranks, device=device) for _ in range(2))
    return Buffers(whole, other, torch.empty(share, device=device), rank, ranks)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One of them.

    Attributes:
        bus: from algorithm to bus bandwidth, for n ranks.
        by_torch: do it, with buffers and a process group; or only start it, and return what is to be waited for.
        by_horovod: start it, with buffers and Horovod's module. Returns Horovod's handle.
        by_mpi: of buffers and a communicator, a call that does it.
        result: the buffer in which the result is.
        expected: what it must be once the buffers were filled.
    """

    bus: Callable[[int], float]
    by_torch: Callable[[Buffers, Any, bool], Any]
    by_mpi: Callable[[Buffers, Any], Callable[[], object]]
    by_horovod: Callable[[Buffers, Any], Any] | None = None
    result: Callable[[Buffers], Tensor]
    expected: Callable[[Buffers], Tensor | float]


def _sum(b: Buffers) -> float:
    return b.ranks * (b.ranks + 1) / 2


def _all_numbers(b: Buffers) -> Tensor:
    """Every rank's number plus one, each over a share."""
    return torch.arange(1.0, b.ranks + 1, device=b.whole.device).repeat_interleave(b.part.numel())


def _ring(b: Buffers, group: Any, later: bool) -> Any:
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    steps = [dist.P2POp(dist.isend, b.whole, right, group), dist.P2POp(dist.irecv, b.other, left, group)]
    works = _Works(dist.batch_isend_irecv(steps))
    return works if later else works.wait()


class _Works(list[dist.Work]):
    def wait(self) -> None:
        for work in self:
            work.wait()


def _memory(tensor: Tensor) -> Any:
    """What mpi4py takes: an array, or the tensor where an MPI takes GPU memory."""
    return tensor if tensor.is_cuda else tensor.numpy()


def _mpi_ring(b: Buffers, comm: Any) -> Callable[[], object]:
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    sent, received = _memory(b.whole), _memory(b.other)
    return lambda: comm.Sendrecv(sent, right, recvbuf=received, source=left)


def _mpi_allreduce(b: Buffers, comm: Any) -> Callable[[], object]:
    from mpi4py import MPI

    data = _memory(b.whole)
    return lambda: comm.Allreduce(MPI.IN_PLACE, data, MPI.SUM)


def _mpi(name: str, source: str, target: str) -> Callable[[Buffers, Any], Callable[[], object]]:
    def prepare(b: Buffers, comm: Any) -> Callable[[], object]:
        sent, received = _memory(getattr(b, source)), _memory(getattr(b, target))
        return lambda: getattr(comm, name)(sent, received)

    return prepare


def _mpi_broadcast(b: Buffers, comm: Any) -> Callable[[], object]:
    data = _memory(b.whole)
    return lambda: comm.Bcast(data, 0)


# torch 2.14 has given them these names.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

OPERATIONS = {
    "allreduce": Operation(
        bus=lambda n: 2 * (n - 1) / n,
        by_torch=lambda b, group, later: dist.all_reduce(b.whole, group=group, async_op=later),
        by_mpi=_mpi_allreduce,
        by_horovod=lambda b, hvd: hvd.allreduce_async_(b.whole, op=hvd.Sum, name="bench"),
        result=lambda b: b.whole,
        expected=_sum,
    ),
    "allgather": Operation(
        bus=lambda n: (n - 1) / n,
        by_torch=lambda b, group, later: _all_gather(b.whole, b.part, group=group, async_op=later),
        by_mpi=_mpi("Allgather", "part", "whole"),
        by_horovod=lambda b, hvd: hvd.allgather_async(b.part, name="bench"),
        result=lambda b: b.whole,
        expected=_all_numbers,
    ),
    "reduce_scatter": Operation(
        bus=lambda n: (n - 1) / n,
        by_torch=lambda b, group, later: _reduce_scatter(b.part, b.whole, group=group, async_op=later),
        by_mpi=_mpi("Reduce_scatter_block", "whole", "part"),
        by_horovod=lambda b, hvd: hvd.reducescatter_async(b.whole, op=hvd.Sum, name="bench"),
        result=lambda b: b.part,
        expected=_sum,
    ),
    "alltoall": Operation(
        bus=lambda n: (n - 1) / n,
        by_torch=lambda b, group, later: dist.all_to_all_single(b.other, b.whole, group=group, async_op=later),
        by_mpi=_mpi("Alltoall", "whole", "other"),
        by_horovod=lambda b, hvd: hvd.alltoall_async(b.whole, name="bench"),
        result=lambda b: b.other,
        expected=_all_numbers,
    ),
    "broadcast": Operation(
        bus=lambda n: 1.0,
        by_torch=lambda b, group, later: dist.broadcast(b.whole, 0, group=group, async_op=later),
        by_mpi=_mpi_broadcast,
        by_horovod=lambda b, hvd: hvd.broadcast_async_(b.whole, 0, name="bench"),
        result=lambda b: b.whole,
        expected=lambda b: 1.0,
    ),
    "sendrecv": Operation(
        bus=lambda n: 1.0,
        by_torch=_ring,
        by_mpi=_mpi_ring,
        result=lambda b: b.other,
        expected=lambda b: float((b.rank - 1) % b.ranks + 1),
    ),
}
