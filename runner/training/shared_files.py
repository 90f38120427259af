"""Work that has to be done once per shared file system, while the other ranks wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from runner.training.run import Run
from runner.training.workload import make_writable


def once_per_file_system(run: Run, folder: Path, option: str, work: Callable[[], None]) -> None:
    """Call ``work`` on one rank of each file system that holds the folder. Collective.

    The first rank of every host creates a marker file. The lowest rank whose marker a host sees does the work for that
    host. So which hosts share the folder is measured, not assumed.

    Raises:
        UsageError: the folder cannot be written, or ``work`` raised it; all ranks raise it.
    """
    topology = run.job.topology
    leaders = [host.ranks[0] for host in topology.hosts]
    own_leader = leaders[topology.host_index(run.rank)]
    name = run.on_main(lambda: f".rank-{os.urandom(4).hex()}")
    marker = folder / f"{name}-{run.rank}"
    with run.agreeing():
        if run.rank == own_leader:
            make_writable(folder, option)
            marker.touch()
    try:
        with run.agreeing():
            # Each name is looked up only after it was made: a network file system may cache a miss.
            if run.rank == own_leader == next(rank for rank in leaders if (folder / f"{name}-{rank}").exists()):
                work()
    finally:
        marker.unlink(missing_ok=True)
