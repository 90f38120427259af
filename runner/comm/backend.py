"""A backend: what ranks talk by. One object of this kind says all that the runner asks of it, and its import is cheap.

``runner.comm.table`` lists them. What is here suits a backend that torch.distributed has itself; another one replaces what
it does differently.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.job import Job

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

Finish = Callable[
    [], object
]  # waits for the end of what was started; returns a tensor where the result is in a new one


@dataclass(frozen=True)
class Buffers:
    """What an operation works on: ``whole`` and ``other`` of one size, ``part`` a rank's share of it."""

    whole: Tensor
    other: Tensor
    part: Tensor
    rank: int
    ranks: int


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation on some buffers.

    Attributes:
        call: do it. Returns a tensor where the result is in a new one.
        start: start it, where that is possible; returns what waits for its end.
    """

    call: Callable[[], object]
    start: Callable[[], Finish] | None


@dataclass(frozen=True)
class Finding:
    """What a rank finds out about a backend; ``problem`` where it is installed and does not work."""

    text: str
    problem: str = ""


class Connection:
    """All ranks, connected by a backend.

    Attributes:
        group: torch.distributed's, where it is one.
        starts_anew: its first call in a turn takes longer than the others.
    """

    group: ProcessGroup | None = None
    starts_anew = False

    def operation(self, name: str, data: Buffers, label: str) -> Operation | None:
        """An operation on buffers; None where the backend has none of that name.

        The names: allreduce (sums ``whole``), allgather (``part`` to ``whole``), reduce_scatter (``whole`` to ``part``),
        alltoall (``whole`` to ``other``), broadcast (rank 0's ``whole``), sendrecv (``whole`` to the next rank's ``other``).

        Args:
            label: tells it from others that are under way at the same time.
        """
        raise NotImplementedError

    def turn(self) -> AbstractContextManager[None]:
        """In here it is used. Outside it must not slow others."""
        return nullcontext()


class Backend:
    """A backend of torch.distributed, or a library beside it.

    Attributes:
        name: that a user types.
        is_process_group: whether torch.distributed makes groups of it; else it is a library, trained by the strategy of
            its name.
        chosen_on: the types of device on which a workload may get it without asking for it, and ``why_chosen``.
        takes_a_core: a thread of it waits by spinning.
        binds_device: whether a group of it is told its GPU when it is made.
        is_measured: whether bench and compare know it.
        package: of Python, whose version has to be the same on all ranks; "" where torch's says it.
        title: of its line in the doctor's report, "" for none, and ``patience``: seconds that its rank may take for it.
    """

    name = ""
    is_process_group = True
    chosen_on: tuple[str, ...] = ()
    why_chosen = ""
    takes_a_core = False
    binds_device = False
    is_measured = True
    package = ""
    title = ""
    patience = 4.0

    def unavailable_reason(self, job: Job) -> str:
        """Why the job cannot use it, or an empty string: the same on all ranks. Imports no torch."""
        return ""

    def remark(self, job: Job) -> str:
        """What there is to know where it is used as asked for."""
        return ""

    def prepare(self, job: Job) -> None:
        """Have it work in a program that may be yet to import torch, or the library. The job's store is served."""

    def start(self, job: Job) -> Connection:
        """Connect all ranks; torch.distributed's default group is there. Collective.

        Raises:
            RunnerError: that is not possible.
        """
        from runner.comm.torch_operations import TorchConnection

        return TorchConnection(self.name)

    def examine(self, job: Job) -> Finding:
        """This rank's line for the doctor."""
        return Finding("")
