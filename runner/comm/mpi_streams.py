"""A GPU's streams around MPI's calls, which know nothing of them.

A call waits for what its caller has queued before it, and works on a stream of its own, so that a GPU goes on computing
while gradients travel. When the call is over nothing of it is queued any more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Streams:
    """A group's own streams, one per device: groups do not wait for each other."""

    def __init__(self) -> None:
        self._of: Callable[[torch.device], torch.cuda.Stream] = functools.cache(torch.cuda.Stream)

    def after_what_is_queued(self, tensor: Tensor, call: Callable[[], Result]) -> Callable[[], Result]:
        """The call on a GPU's tensor, to be made later and in any thread; for the CPU's the call itself."""
        if tensor.is_cpu:
            return call
        queued = torch.cuda.current_stream(tensor.device).record_event()

        def ordered() -> Result:
            stream = self._of(tensor.device)
            with torch.cuda.stream(stream):
                stream.wait_event(queued)
                try:
                    return call()
                finally:
                    stream.synchronize()

        return ordered
