"""MPI itself, by mpi4py and without torch.distributed: the floor for the backend mpi4py. All calls are blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runner.backends.backend import Backend
from runner.backends.connection import Buffers, Connection, Operation
from runner.job import Job
from runner.rendezvous.methods.mpi_library import takes_gpu_memory

if TYPE_CHECKING:
    from torch import Tensor


class BareMPI(Backend):
    name = "mpi"
    is_process_group = False

    def unavailable_reason(self, job: Job) -> str:
        if job.endpoint.way != "mpi":
            return "the ranks did not meet by MPI"
        return "this MPI takes no GPU memory" if job.placement.device == "cuda" and not takes_gpu_memory() else ""

    def start(self, job: Job) -> Connection:
        return _World()


class _World(Connection):
    def operation(self, name: str, data: Buffers, label: str) -> Operation | None:
        from mpi4py import MPI

        return Operation(call=_OPERATIONS[name](data, MPI.COMM_WORLD), start=None)


def _memory(tensor: Tensor) -> Any:
    """The buffer for mpi4py: an array, or a GPU's tensor itself, for an MPI that supports GPU memory."""
    return tensor if tensor.is_cuda else tensor.numpy()


def _ring(b: Buffers, comm: Any) -> Callable[[], object]:
    right, left = (b.rank + 1) % b.ranks, (b.rank - 1) % b.ranks
    sent, received = _memory(b.whole), _memory(b.other)
    return lambda: comm.Sendrecv(sent, right, recvbuf=received, source=left)


def _allreduce(b: Buffers, comm: Any) -> Callable[[], object]:
    from mpi4py import MPI

    data = _memory(b.whole)
    return lambda: comm.Allreduce(MPI.IN_PLACE, data, MPI.SUM)


def _between(name: str, source: str, target: str) -> Callable[[Buffers, Any], Callable[[], object]]:
    def prepare(b: Buffers, comm: Any) -> Callable[[], object]:
        sent, received = _memory(getattr(b, source)), _memory(getattr(b, target))
        return lambda: getattr(comm, name)(sent, received)

    return prepare


def _broadcast(b: Buffers, comm: Any) -> Callable[[], object]:
    data = _memory(b.whole)
    return lambda: comm.Bcast(data, 0)


# (buffers, communicator) → a function that does the operation.
_OPERATIONS: dict[str, Callable[[Buffers, Any], Callable[[], object]]] = {
    "allreduce": _allreduce,
    "allgather": _between("Allgather", "part", "whole"),
    "reduce_scatter": _between("Reduce_scatter_block", "whole", "part"),
    "alltoall": _between("Alltoall", "whole", "other"),
    "broadcast": _broadcast,
    "sendrecv": _ring,
}
