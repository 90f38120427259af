"""A group's point-to-point messages: MPI's own, begun at once, so that two ranks may send to each other."""

from __future__ import annotations

from mpi4py import MPI
from torch import Tensor

from runner.comm.mpi.buffers import as_bytes, is_plain, scratch, sendable
from runner.comm.mpi.tasks import Request, Steps


def send(comm: MPI.Intracomm, tensor: Tensor, destination: int, tag: int) -> Steps:
    data = sendable(tensor)  # held here until MPI is done with it
    yield comm.Isend(as_bytes(data), destination, tag)


def receive(comm: MPI.Intracomm, tensor: Tensor, source: int, tag: int) -> Steps:
    data = tensor if is_plain(tensor) else scratch(tensor.shape, tensor.dtype, tensor)
    yield comm.Irecv(as_bytes(data), source, tag)
    if data is not tensor:
        tensor.detach().copy_(data)


class Sender:
    """A receive request that stores the message's sender in a status."""

    def __init__(self, request: MPI.Request, status: MPI.Status) -> None:
        self._request, self._status = request, status

    def Test(self) -> bool:
        return bool(self._request.Test(self._status))


def from_anybody(steps: Steps, status: MPI.Status) -> Steps:
    """The steps of a receive from any rank; afterwards the status holds the sender."""
    for request in steps:
        assert isinstance(request, MPI.Request)
        sender: Request = Sender(request, status)
        yield sender
