"""Horovod's operations. It has no sendrecv."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from runner.backends.connection import Buffers, Connection, Operation
from runner.backends.horovod.library import in_turn

# Functions of the buffers, Horovod's module and a name, that start the operation and return Horovod's handle.
_OPERATIONS: dict[str, Callable[[Buffers, Any, str], Any]] = {
    "allreduce": lambda b, hvd, name: hvd.allreduce_async_(b.whole, op=hvd.Sum, name=name),
    "allgather": lambda b, hvd, name: hvd.allgather_async(b.part, name=name),
    "reduce_scatter": lambda b, hvd, name: hvd.reducescatter_async(b.whole, op=hvd.Sum, name=name),
    "alltoall": lambda b, hvd, name: hvd.alltoall_async(b.whole, name=name),
    "broadcast": lambda b, hvd, name: hvd.broadcast_async_(b.whole, 0, name=name),
}


class HorovodConnection(Connection):
    """Horovod's world, stopped outside of its turns."""

    starts_anew = True  # in the first call of a turn the ranks negotiate more than in later ones

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd

    def turn(self) -> AbstractContextManager[None]:
        return in_turn(self._hvd)

    def operation(self, name: str, data: Buffers, label: str) -> Operation | None:
        run, hvd = _OPERATIONS.get(name), self._hvd
        if run is None:
            return None

        def finish(handle: Any) -> object:
            output = hvd.synchronize(handle)
            return output[0] if isinstance(output, tuple) else output  # alltoall also returns the sizes received

        return Operation(
            call=lambda: finish(run(data, hvd, label)), start=lambda: functools.partial(finish, run(data, hvd, label))
        )
