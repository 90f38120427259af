"""A process group in Python that calls the backend directly.

For a backend in Python torch.distributed makes a C++ group: each call goes through torch's dispatcher into C++ and back,
and the returned work hides the backend's own, whose ``is_completed`` and source rank it does not use. A backend may return
a group in Python instead, which torch.distributed calls directly. Calls that must be visible as operators (to a profiler, a
dispatch mode, a tensor subclass) still go through the C++ group, here called the detour.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroup

from runner.versions.group_operations import OPERATIONS
from runner.versions.torch_private import (
    DebugLevel,
    default_to_python,
    get_debug_level,
    is_dispatch_watched,
    is_profiling,
    name_group,
    options_class,
    register_backend,
)

if TYPE_CHECKING:
    from runner.backends.mpi4py.backend import MPIBackend

_MESSAGES = {"send": 3, "recv": 3, "recv_anysource": 2}
_PLAIN = {torch.Tensor, torch.nn.Parameter, int}


class MPIGroup(ProcessGroup):
    """
    Args:
        detour: the C++ group that torch has made, which gets the backend, too.
    """

    def __init__(self, options: Any, backend: MPIBackend, detour: ProcessGroup) -> None:
        super().__init__(options.store, options.group_rank, options.group_size)
        self._backend, self._detour = backend, detour
        self.is_hooked = False
        if detour.bound_device_id is not None:
            self.bound_device_id = detour.bound_device_id
        default_to_python(self)
        for group in (self, detour):
            for device in ("cpu", "cuda"):
                register_backend(group, device, backend)

    def register_pre_hook(self, *arguments: Any) -> Any:
        self.is_hooked = True
        return self._detour.register_pre_hook(*arguments)

    def register_post_hook(self, *arguments: Any) -> Any:
        self.is_hooked = True
        return self._detour.register_post_hook(*arguments)

    def getBackendName(self) -> str:
        return self._backend.getBackendName()

    def _set_group_name(self, name: Any) -> None:
        super()._set_group_name(name)
        name_group(self._detour, name)


def _operation(name: str, count: int, last: type, is_watched: Callable[[], bool]) -> Callable[..., Any]:
    """A call of the backend if it has as many arguments as usual and ends with one of type ``last``; else of the detour."""

    def call(self: MPIGroup, *arguments: Any, **named: Any) -> Any:
        is_usual = len(arguments) == count and type(arguments[-1]) is last and not named and not self.is_hooked
        if is_usual and _are_plain(arguments[:-1]) and not is_watched():
            return getattr(self._backend, name)(*arguments)
        return getattr(self._detour, name)(*arguments, **named)

    call.__name__ = name
    return call


def _barrier(self: MPIGroup, *arguments: Any, **named: Any) -> Any:
    """Unlike other operations, torch.distributed calls this one with its options as a keyword argument."""
    if "opts" in named and not self.is_hooked and not _is_watched():
        return self._backend.barrier(named["opts"])
    return self._detour.barrier(*arguments, **named)


def _are_plain(arguments: Iterable[Any]) -> bool:
    """Whether no argument is of a tensor subclass."""
    for argument in arguments:
        kind = type(argument)
        if kind not in _PLAIN and not (kind is list and _are_plain(argument)):
            return False
    return True


def _is_watched() -> bool:
    return is_dispatch_watched() or is_profiling()


_CALLS = {
    **{
        name: _operation(name, one.arguments + 1, options_class(one.options), _is_watched)
        for name, one in OPERATIONS.items()
    },
    "barrier": _barrier,
    # A profiler sees the backend's own records of these.
    **{name: _operation(name, count, int, is_dispatch_watched) for name, count in _MESSAGES.items()},
}
for _name, _call in _CALLS.items():
    setattr(MPIGroup, _name, _call)


def can_be_used() -> bool:
    """Whether no debugging option of torch is set that wraps or hooks the backends of C++ groups."""
    is_wrapped = get_debug_level() == DebugLevel.DETAIL
    return not is_wrapped and os.environ.get("TORCH_DIST_NAN_CHECK", "0") != "1"
