"""The process group on torch before 2.14, which accepts no backend in Python but does accept a whole group.

torch.distributed calls the group directly. Torch's C++ (DDP, functional collectives) reaches the group by the operations that
these releases' ``ProcessGroup`` hands over to Python. There is no C++ group beside it, so everything that one would keep (names,
devices, options) is kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ProcessGroup

from runner.versions.group_operations import OPERATIONS, GroupOperation
from runner.versions.torch_private import OLDER_OPERATIONS, AsyncCollectiveTensor, options_class

_DEVICES = ("cpu", "cuda")


class PlainBackend:
    """The base class of ``MPIBackend`` where Python cannot derive a class from torch's ``Backend``."""

    def __init__(self, rank: int, size: int) -> None:
        self._place = rank, size

    def rank(self) -> int:
        return self._place[0]

    def size(self) -> int:
        return self._place[1]

    def name(self) -> str:
        return "mpi4py"

    def abort(self) -> None:
        """Does nothing: the runner ends a failed job."""


class OlderGroup(ProcessGroup):
    """A group whose only backend is ``MPIBackend``."""

    def __init__(self, options: Any, backend: Any) -> None:
        make_group: Any = super().__init__  # type checkers know the newest torch's, which takes a store, too
        make_group(options.group_rank, options.group_size)
        self._backend, self._store = backend, options.store
        self._own_name, self._own_description = "", "undefined"

    # Names. Torch's own methods ask a C++ backend for them.
    def getBackendName(self) -> str:
        return str(self._backend.getBackendName())

    def setGroupName(self, name: str) -> None:
        self._own_name = name

    def getGroupName(self) -> str:
        return self._own_name

    def setGroupDesc(self, desc: str) -> None:
        self._own_description = desc

    def getGroupDesc(self) -> str:
        return self._own_description

    name = _get_backend_name = getBackendName
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(device) for device in _DEVICES]

    def _get_backend(self, device: Any) -> Any:
        if torch.device(device).type not in _DEVICES:
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self._backend

    def get_group_store(self) -> Any:
        return self._store

    def shutdown(self) -> None:
        self._backend.shutdown()

    def abort(self) -> None:
        self._backend.abort()

    def set_timeout(self, timeout: timedelta) -> None:
        self._backend.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: the number begins at 0 on all ranks."""

    def _get_sequence_number_for_group(self) -> int:
        return int(self._backend.asked_for)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Does nothing: the group has no hooks, for which torch would wait here."""

    def _start_coalescing(self, device: Any) -> None:
        # The words that torch looks for before it sends calls one by one.
        raise RuntimeError("Backend mpi4py does not implement startCoalescing")

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        options = options_class("BarrierOptions")()
        has_own = timeout is not None and timeout >= timedelta(0)
        options.timeout = timeout if has_own else self._backend.timeout
        self._backend.monitored_barrier(options, wait_all_ranks)

    # Messages. Torch's bindings leave the tag out in places.
    def send(self, tensors: Any, destination: int, tag: int = 0) -> Any:
        return self._backend.send(_arrived(tensors), destination, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Any:
        return self._backend.recv(_arrived(tensors), source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._backend.recv_anysource(_arrived(tensors), tag)


def _arrived(value: Any) -> Any:
    """Wait for what a functional collective is still filling. With a group in C++ torch's dispatcher does this."""
    if type(value) is list:
        return [_arrived(one) for one in value]
    wait: Any = value.trigger_wait if isinstance(value, AsyncCollectiveTensor) else None  # torch leaves it untyped
    return value if wait is None else wait()


def _calling(name: str, operation: GroupOperation) -> Callable[..., Any]:
    count, options = operation.arguments, options_class(operation.options)

    def call(self: OlderGroup, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == count + 1 and type(arguments[count]) is options and not named:
            return getattr(self._backend, name)(*map(_arrived, arguments))
        return getattr(self._backend, name)(*map(_arrived, _usual(operation, arguments, named)))

    call.__name__ = name
    return call


def _usual(operation: GroupOperation, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return the usual arguments for one of the short forms: ``allreduce(tensor, ReduceOp.SUM)``, ``broadcast(tensor, root=1)``.

    Raises:
        TypeError: an argument fits none of the options.
    """
    tensors, rest = list(arguments[: operation.arguments]), [*arguments[operation.arguments :], *named.values()]
    given = [one for one in rest if type(one) is options_class(operation.options)]
    options = given[0] if given else options_class(operation.options)()
    for value in rest:
        if isinstance(value, timedelta):
            options.timeout = value
        elif isinstance(value, int) and hasattr(options, "rootRank"):
            options.rootRank = value
        elif isinstance(value, (torch.distributed.ReduceOp, torch.distributed.ReduceOp.RedOpType)):
            options.reduceOp = value
        elif value is not options:
            raise TypeError(f"{type(value).__name__} is no option of this operation")
    if operation.takes_lists and any(isinstance(one, torch.Tensor) for one in tensors):
        tensors = [[one] for one in tensors]
    return [*tensors, options]


for _name, _operation in OPERATIONS.items():
    for _known_as in filter(None, (_name, OLDER_OPERATIONS.get(_name))):
        setattr(OlderGroup, _known_as, _calling(_name, _operation))
