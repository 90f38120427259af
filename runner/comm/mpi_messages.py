"""A group's messages: MPI's own non-blocking ones, posted at once, so that two ranks may send to each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import Tensor

from runner.comm.mpi_buffers import as_bytes, is_plain, scratch, sendable
from runner.comm.mpi_streams import Streams
from runner.comm.mpi_work import MPIWork


class Messages:
    """Those of a group, on a communicator of their own. Their memory is MPI's until it is done with them, whoever has let
    go of them, so they are kept here until then."""

    def __init__(self, comm: MPI.Intracomm, streams: Streams) -> None:
        self._comm, self._streams = comm, streams
        self._under_way: list[Message] = []
        self._lock = threading.Lock()

    def send(self, tensor: Tensor, destination: int, tag: int, limit: float) -> Message:
        """Post a message; the limit, in seconds, is for those who wait for it."""
        data = sendable(tensor)
        request = self._comm.Isend(as_bytes(data), destination, tag)
        return self._keep(Message(f"send to rank {destination}", tensor, limit, request, data, self._streams))

    def receive(self, tensor: Tensor, source: int, tag: int, limit: float) -> Message:
        """Post the place for a message."""
        data = tensor if is_plain(tensor) else scratch(tensor.shape, tensor.dtype, tensor)
        request = self._comm.Irecv(as_bytes(data), source, tag)

        def hand_over() -> None:
            if data is not tensor:
                tensor.detach().copy_(data)

        done = self._streams.after_what_is_queued(tensor, hand_over)
        return self._keep(Message(f"recv from rank {source}", tensor, limit, request, data, self._streams, done))

    def finish(self, limit: float) -> bool:
        """Whether all are done, within so many seconds."""
        deadline = time.monotonic() + limit
        return all(becomes_true(message.move_on, deadline - time.monotonic()) for message in self._under_way)

    def _keep(self, message: Message) -> Message:
        with self._lock:
            others = self._under_way
            self._under_way = [*others, message]
        for other in others:
            other.move_on()
        with self._lock:
            self._under_way = [other for other in self._under_way if not other.has_left_mpi]
        return message


class Message(MPIWork):
    """A message on its way; whoever waits for it moves it on."""

    def __init__(
        self,
        what: str,
        tensor: Tensor,
        limit: float,
        request: MPI.Request,
        data: Tensor,
        streams: Streams,
        hand_over: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(what, [tensor], limit)
        self._request, self._data, self._streams, self._hand_over = request, data, streams, hand_over
        self._moving = threading.Lock()  # a request is one thread's at a time
        self.has_left_mpi = False  # until then its memory is MPI's

    def move_on(self) -> bool:
        """Whether MPI is done with it; what was received is then where it belongs."""
        error = None
        with self._moving:
            if self.has_left_mpi:
                return True
            try:
                if not self._request.Test():
                    return False
                if self._hand_over is not None:
                    self._hand_over()
            except Exception as raised:  # longer than its buffer, or the other side is gone
                error = raised
            self.has_left_mpi = True
        # Callbacks may come back here, so without the lock.
        if error is None:
            self.succeed()
        else:
            self.fail(error)
        return True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        limit = timeout.total_seconds() if timeout > timedelta(0) else self.limit
        if not becomes_true(self.move_on, limit):
            raise dist.DistBackendError(f"{self.what} was not done within {limit:.0f} s; is the other side there?")
        if self.error is not None:
            raise self.error
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        if not self.has_left_mpi:
            # MPI may want the GPU's context in a thread that asks it about the GPU's memory.
            wait = self._streams.after_what_is_queued(self.results[0], self._wait_for_future)
            threading.Thread(target=wait, daemon=True).start()
        return super().get_future()

    def _wait_for_future(self) -> None:
        try:
            self.wait()
        except Exception as error:
            self.fail(error)


def becomes_true(done: Callable[[], bool], limit: float) -> bool:
    """Whether it does, within so many seconds."""
    deadline, pause = time.monotonic() + limit, 0.0
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause + 2e-6, 1e-3)  # at first at once, later seldom: the other side may need the core
    return True
