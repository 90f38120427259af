"""A record of each call for torch's profilers, as other backends make them: "mpi4py:all_reduce", with its tensors' shapes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import torch

from runner.backends.devices import current_device, take_device
from runner.backends.mpi4py.tasks import Steps

_PATIENCE = 5.0  # seconds that ending a record may take


def is_on() -> bool:
    """Whether a profiler is active: this thread's, or one of all threads."""
    return bool(torch._C._autograd._profiler_enabled() or torch.autograd.profiler._is_profiler_enabled)


def recorded(name: str, tensors: Sequence[torch.Tensor], steps: Steps) -> Steps:
    """The steps of a call, with a record that begins now and ends with them."""
    handle: Any = torch._C._autograd._record_function_with_args_enter(name, *tensors)

    def followed() -> Steps:
        try:
            yield from steps
        finally:
            # A record that ends in another thread than it began in is shown as an asynchronous call.
            with contextlib.suppress(RuntimeError, TimeoutError, futures.TimeoutError):  # a record is not worth a call
                _thread().submit(torch._C._autograd._record_function_with_args_exit, handle).result(_PATIENCE)

    return followed()


@functools.cache
def _thread() -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(1, "mpi4py profiling", initializer=take_device, initargs=(current_device(),))
