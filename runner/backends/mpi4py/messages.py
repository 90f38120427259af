"""A group's point-to-point messages: begun at once, so that two ranks may send to each other.

A receive first learns the size of its message (a matched probe), and takes it in only then: Open MPI writes a message that is
longer than the receive's memory past its end (seen with 5.0, from 5,000 bytes on), a shorter one leaves the rest as it
was, and MPICH's status does not have a longer one's size.
"""

from __future__ import annotations

import threading

import torch
from mpi4py import MPI
from torch import Tensor

from runner.backends.mpi4py.buffers import as_bytes, is_plain, scratch, sendable
from runner.backends.mpi4py.tasks import Steps


class Arrival:
    """The message that a receive waits for: a request that is done when the message has been matched.

    Attributes:
        message: the matched message; None before.
        status: its sender and size.
    """

    def __init__(self, mailbox: Mailbox, source: int, tag: int) -> None:
        self.source, self.tag, self._mailbox = source, tag, mailbox
        self.message: MPI.Message | None = None
        self.status = MPI.Status()

    def Test(self) -> bool:
        self._mailbox.look(self)
        return self.message is not None

    def give_up(self) -> None:
        """Take no message any more: the next one is for the next receive."""
        self._mailbox.forget(self)

    def takes(self, status: MPI.Status) -> bool:
        return self.tag == status.tag and self.source in (status.source, MPI.ANY_SOURCE)


class Mailbox:
    """The receives of a group that wait for their messages, in the order in which they were made.

    A message goes to the first receive that takes it, as MPI's own order requires, whichever receive is tested first.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._lock = comm, threading.Lock()
        self._waiting: list[Arrival] = []

    def expect(self, source: int, tag: int) -> Arrival:
        arrival = Arrival(self, source, tag)
        with self._lock:
            self._waiting.append(arrival)
        return arrival

    def forget(self, arrival: Arrival) -> None:
        with self._lock:
            if arrival in self._waiting:  # else it has its message
                self._waiting.remove(arrival)

    def look(self, arrival: Arrival) -> None:
        """Take the messages that a receive may get from MPI, until it has one or there is none."""
        with self._lock:
            while arrival.message is None:
                status = MPI.Status()
                message = self._comm.Improbe(arrival.source, arrival.tag, status)
                if message is None:
                    return
                first = next(one for one in self._waiting if one.takes(status))
                first.message, first.status = message, status
                self._waiting.remove(first)


def send(comm: MPI.Intracomm, tensor: Tensor, destination: int, tag: int) -> Steps:
    data = sendable(tensor)  # held here until MPI is done with it
    yield comm.Isend(as_bytes(data), destination, tag)


def receive(arrival: Arrival, tensor: Tensor) -> Steps:
    """
    Raises:
        ValueError: the message has another size than the tensor.
    """
    yield arrival
    message, size = arrival.message, arrival.status.Get_elements(MPI.BYTE)
    assert message is not None
    if size != tensor.nbytes:
        rest = torch.empty(size, dtype=torch.uint8, device="cpu")
        yield message.Irecv(as_bytes(rest))  # or its sender would wait
        raise ValueError(
            f"recv: the message of rank {arrival.status.source} has {size} bytes, the tensor {tensor.nbytes} "
            f"({tensor.numel()} × {tensor.dtype})"
        )
    data = tensor if is_plain(tensor) else scratch(tensor.shape, tensor.dtype, tensor)
    yield message.Irecv(as_bytes(data))
    if data is not tensor:
        tensor.detach().copy_(data)
