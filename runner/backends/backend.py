"""The base class of backends, the ways in which ranks communicate. Importing a backend's class is cheap.

``runner.backends.registry`` lists the backends. The methods here fit a backend that torch.distributed itself has; another backend
overrides what it does differently.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from runner.job import Job

if TYPE_CHECKING:
    from runner.backends.connection import Connection


class Finding(NamedTuple):
    """A rank's report about a backend; ``problem`` if it is installed but does not work."""

    text: str
    problem: str = ""


class Backend:
    """A backend of torch.distributed, or a library beside it.

    Attributes:
        name: the name that a user types.
        is_process_group: whether torch.distributed makes groups with it; if not, it is a library, used by the strategy of
            the same name.
        chosen_on: the device types on which a workload may get it without asking for it; ``why_chosen`` is the reason shown.
        takes_a_core: whether one of its threads waits by spinning.
        binds_device: whether its groups are given their GPU when they are made.
        is_measured: whether bench and compare include it.
        package: the Python package whose version must be the same on all ranks; "" if torch's version covers it.
        title: the title of its line in the doctor's report, "" for no line.
        patience: seconds that a rank may take for that line.
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
        """Why the job cannot use it, or an empty string; the same on all ranks. Does not import torch."""
        return ""

    def unproven_reason(self, job: Job) -> str:
        """Why a job gets it only by asking for it, though it can be used; or an empty string. The same on all ranks."""
        return ""

    def remark(self, job: Job) -> str:
        """Return a remark for a user who asked for this backend by ``--backend``; "" for nothing."""
        return ""

    def prepare(self, job: Job) -> None:
        """Make it work in a program that may import torch, or the library, later. The job's store is served already."""

    def starting(self, job: Job) -> AbstractContextManager[None]:
        """The block in which torch.distributed's default group is made."""
        return nullcontext()

    def start(self, job: Job) -> Connection:
        """Connect all ranks. Needs torch.distributed's default group. Collective.

        Raises:
            RunnerError: the ranks cannot be connected.
        """
        from runner.backends.torch_operations import TorchConnection

        return TorchConnection(self.name)

    def examine(self, job: Job) -> Finding:
        """This rank's line for the doctor."""
        return Finding("")
