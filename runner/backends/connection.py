"""All ranks connected by a backend, and the operations that ``bench`` and ``compare`` time on it. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

# Waits for an operation that was started; returns a tensor if the result is in a new one.
Finish = Callable[[], object]


@dataclass(frozen=True)
class Buffers:
    """An operation's tensors: ``whole`` and ``other`` have the same size, ``part`` is a rank's share of it."""

    whole: Tensor
    other: Tensor
    part: Tensor
    rank: int
    ranks: int


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation on some buffers.

    Attributes:
        call: runs it. Returns a tensor if the result is in a new one.
        start: starts it and returns a function that waits for its end; None if it cannot run asynchronously.
    """

    call: Callable[[], object]
    start: Callable[[], Finish] | None


class Connection:
    """All ranks, connected by a backend.

    Attributes:
        group: the torch.distributed process group, if it has one.
        starts_anew: the first call in a turn takes longer than the others.
    """

    group: ProcessGroup | None = None
    starts_anew = False

    def operation(self, name: str, data: Buffers, label: str) -> Operation | None:
        """An operation on buffers; None where the backend has none of that name.

        The names: allreduce (sums ``whole``), allgather (``part`` to ``whole``), reduce_scatter (``whole`` to ``part``),
        alltoall (``whole`` to ``other``), broadcast (rank 0's ``whole``), sendrecv (``whole`` to the next rank's ``other``).

        Args:
            label: distinguishes it from other operations that run at the same time.
        """
        raise NotImplementedError  # each backend has its own

    def turn(self) -> AbstractContextManager[None]:
        """The block in which the connection is used. Outside such blocks it must not slow other backends."""
        return nullcontext()
