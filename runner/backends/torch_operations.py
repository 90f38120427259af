"""The operations of a group of torch.distributed, whatever its backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from runner.backends.connection import Buffers, Connection, Operation

# The first names are torch 2.14's.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class _Works(list[dist.Work]):
    def wait(self) -> None:
        for work in self:
            work.wait()


def _ring(b: Buffers, group: Any, later: bool) -> Any:
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    steps = [dist.P2POp(dist.isend, b.whole, right, group), dist.P2POp(dist.irecv, b.other, left, group)]
    works = _Works(dist.batch_isend_irecv(steps))
    return works if later else works.wait()


# Functions of the buffers and a group, that run the operation, or (third argument) start it and return its work.
_OPERATIONS: dict[str, Callable[[Buffers, Any, bool], Any]] = {
    "allreduce": lambda b, group, later: dist.all_reduce(b.whole, group=group, async_op=later),
    "allgather": lambda b, group, later: _all_gather(b.whole, b.part, group=group, async_op=later),
    "reduce_scatter": lambda b, group, later: _reduce_scatter(b.part, b.whole, group=group, async_op=later),
    "alltoall": lambda b, group, later: dist.all_to_all_single(b.other, b.whole, group=group, async_op=later),
    "broadcast": lambda b, group, later: dist.broadcast(b.whole, 0, group=group, async_op=later),
    "sendrecv": _ring,
}


class TorchConnection(Connection):
    """A new group of all ranks."""

    def __init__(self, backend: str) -> None:
        group = dist.new_group(backend=backend)
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        self.group = group

    def operation(self, name: str, data: Buffers, label: str) -> Operation | None:
        run, group = _OPERATIONS[name], self.group
        return Operation(call=lambda: run(data, group, False), start=lambda: run(data, group, True).wait)
