"""A GPU's streams around MPI's calls, which know nothing of them.

A call waits for what its caller has queued before it, and works on a stream of its own, so that a GPU goes on computing
while gradients travel. Between its steps nothing of it is queued any more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from runner.comm.mpi.tasks import Request, Steps


class Queued:
    """What a stream has yet to do, as a request."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.current_stream(device).record_event()

    def Test(self) -> bool:
        return bool(self.event.query())


class OnDevice:
    """A request that MPI is asked about with the device current: it may move the GPU's memory then."""

    def __init__(self, device: torch.device, request: Request) -> None:
        self._device, self._request = device, request

    def Test(self) -> bool:
        with torch.cuda.device(self._device):
            return self._request.Test()


class Streams:
    """A group's own streams, one per device: groups do not wait for each other."""

    def __init__(self) -> None:
        self._of: Callable[[torch.device], torch.cuda.Stream] = functools.cache(torch.cuda.Stream)

    def after_what_is_queued(self, tensor: Tensor, steps: Steps, *, at_once: bool = False) -> Steps:
        """The steps with a GPU's tensor, made later and in any thread.

        Args:
            at_once: the first step is not put off until the GPU has come that far: it waits for it.
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
