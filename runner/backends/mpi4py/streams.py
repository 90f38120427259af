"""CUDA streams for MPI calls, as MPI itself does not know about streams.

A call waits for the work that its caller has queued before it, and uses a stream of its own, so that the GPU computes
while gradients are sent. After each of its steps its stream is empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from runner.backends.mpi4py.tasks import PendingRequest, Steps


class Queued:
    """A request that is done when a stream has finished the work queued so far."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.event = device, torch.cuda.current_stream(device).record_event()

    def Test(self) -> bool:
        with torch.cuda.device(self._device):  # a thread of the engine may be older than the choice of a device
            return bool(self.event.query())


class OnDevice:
    """A request that is tested with the device as current device, as MPI may copy GPU memory in the test."""

    def __init__(self, device: torch.device, request: PendingRequest) -> None:
        self._device, self._request = device, request

    def Test(self) -> bool:
        with torch.cuda.device(self._device):
            return self._request.Test()


class DeviceStreams:
    """A group's own streams, one per device, so that groups do not wait for each other."""

    def __init__(self) -> None:
        self._of: Callable[[torch.device], torch.cuda.Stream] = functools.cache(torch.cuda.Stream)

    def after_what_is_queued(self, tensor: Tensor, steps: Steps, *, at_once: bool = False) -> Steps:
        """The steps of a call with a GPU's tensor, which may be made later and in any thread.

        Args:
            at_once: make the first step now, and wait in it for the queued work, instead of making it later.
        """
        return self._on_stream(tensor.device, steps, Queued(tensor.device), at_once)

    def _on_stream(self, device: torch.device, steps: Steps, queued: Queued, at_once: bool) -> Steps:
        if not at_once:
            yield queued
        stream = self._of(device)
        while True:
            with torch.cuda.stream(stream):
                stream.wait_event(queued.event)
                try:
                    request = next(steps)
                except StopIteration:
                    return
                finally:
                    stream.synchronize()
            yield OnDevice(device, request)
