"""Facts about the job that are known after the rendezvous, and decisions made for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runner.guard.report.board import Board
from runner.hardware.placement import Placement
from runner.launch.context import LaunchContext
from runner.rendezvous.records.topology import Topology
from runner.rendezvous.transport.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class Job:
    """This rank's view of the job."""

    context: LaunchContext
    topology: Topology
    endpoint: Endpoint  # its ``way`` is how the ranks met
    rendezvous_why: str  # why the ranks met that way
    placements: tuple[Placement, ...]  # of all ranks
    device: str = "auto"  # as asked for; the placements say which one is used
    backend: str = ""  # of a workload's process group; backends/selection.py chooses it
    backend_why: str = ""
    replaces_gloo: bool = False  # mpi4py serves a script that says gloo, or names no backend
    collective_timeout: float = 1800.0  # seconds
    board: Board = field(default_factory=Board, compare=False, repr=False)  # where the worker reports its progress
    log_folder: Path | None = None  # of --log-dir
    time_limit: float | None = None  # seconds that the job may run; None: as the scheduler says, if it does
    time_to_save: float | None = None  # seconds before that which a step and a checkpoint may take at least
    measure: Path | None = None  # the folder of a run that is measured
    imports_why: str = ""  # why each rank imports torch by itself; "": once per host
    timeout_is_asked_for: bool = False  # if not, scripts have torch's own default

    @property
    def placement(self) -> Placement:
        return self.placements[self.rank]

    @property
    def rank(self) -> int:
        return self.context.rank.value

    @property
    def size(self) -> int:
        return self.topology.size

    @property
    def local_rank(self) -> int:
        return self.topology.local_rank(self.rank)


_held: list[Job] = []


def hold(job: Job) -> None:
    """Keep this process's job for a script that asks for it, by ``runner.start()``."""
    _held[:] = [job]


def held() -> Job | None:
    """The job that is kept."""
    return _held[0] if _held else None
