"""A record of each call for torch's profilers, as other backends make them: "mpi4py:all_reduce", with its tensors' shapes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from concurrent import futures

from torch import Tensor

from runner.backends.gpu import current_device, take_device
from runner.backends.mpi4py.tasks import Steps
from runner.versions.torch_private import begin_record

_PATIENCE = 5.0  # seconds that ending a record may take


def recorded(name: str, tensors: Sequence[Tensor], steps: Steps) -> Steps:
    """The steps of a call, with a record that begins now and ends with them."""
    end = begin_record(name, tensors)

    def followed() -> Steps:
        try:
            yield from steps
        finally:
            # A record that ends in another thread than it began in is shown as an asynchronous call.
            with contextlib.suppress(RuntimeError, TimeoutError, futures.TimeoutError):  # a record is not worth a call
                _thread().submit(end).result(_PATIENCE)

    return followed()


@functools.cache
def _thread() -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(1, "mpi4py profiling", initializer=take_device, initargs=(current_device(),))
