"""A GPU's streams around MPI's calls, which know nothing of them.

A call waits for what its caller has queued before it, and works on a stream of its own, so that a GPU goes on computing
while gradients travel. When the call is over nothing of it is queued any more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor


def after_what_is_queued(tensor: Tensor, call: Callable[[], object]) -> Callable[[], object]:
    """The call on a GPU's tensor, to be made later and in any thread; for the CPU's the call itself."""
    if tensor.is_cpu:
        return call
    queued = torch.cuda.current_stream(tensor.device).record_event()

    def ordered() -> None:
        stream = _own_stream(tensor.device)
        with torch.cuda.stream(stream):
            stream.wait_event(queued)
            call()
            stream.synchronize()

    return ordered


# One per device.
_own_stream: Callable[[torch.device], torch.cuda.Stream] = functools.cache(torch.cuda.Stream)
