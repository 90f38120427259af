"""The MPIs on which the tests are run, and how a job is started with each on this host."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.launchers import INTEL, INTEL_MPIRUN, PREFIXES
from tests.launching import clean_environment, mpirun_path


@dataclass(frozen=True)
class MPI:
    title: str
    mpirun: Callable[[], str]  # the path; it may be found late
    settings: dict[str, str] = field(default_factory=dict)

    def is_here(self) -> bool:
        return Path(self.mpirun()).exists()

    def environment(self) -> dict[str, str]:
        # No GPU: with one or two, torch's tests would skip all for want of one per rank.
        return clean_environment(CUDA_VISIBLE_DEVICES="", **self.settings)

    def command(self, ranks: int, program: Sequence[str]) -> list[str]:
        return [self.mpirun(), "-n", str(ranks), *program]


MPIS = {
    "openmpi": MPI("Open MPI", mpirun_path),
    "mpich": MPI("MPICH", lambda: str(PREFIXES / "mpich" / "bin" / "mpiexec")),
    "intelmpi": MPI("Intel MPI", lambda: INTEL_MPIRUN, INTEL),
}


def version(mpi: MPI) -> str:
    """The title with the version that mpirun prints, as far as it prints one."""
    try:
        done = subprocess.run(
            [mpi.mpirun(), "--version"], env=mpi.environment(), capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return mpi.title
    found = re.search(r"\d+\.\d+(\.\d+)*", done.stdout)
    return f"{mpi.title} {found[0]}" if found else mpi.title
