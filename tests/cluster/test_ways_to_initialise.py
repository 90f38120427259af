"""What runs under plain mpirun runs under the runner, on the MPIs that are not the tests' usual one; on this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launchers import DEBIAN_MPIRUN, INTEL, INTEL_MPIRUN, PREFIXES
from tests.launching import PROGRAMS, RUNNER, free_port, ok, run

MPIS = {
    "openmpi4": (DEBIAN_MPIRUN, {}),
    "mpich": (str(PREFIXES / "mpich" / "bin" / "mpiexec"), {}),
    "intelmpi": (INTEL_MPIRUN, INTEL),
}


@pytest.mark.parametrize("mpi", MPIS)
def test_ranks_by_a_scripts_own_endpoint_and_by_spawning(mpi: str, tmp_path: Path) -> None:
    program, environment = MPIS[mpi]

    def output_of(ranks: int, script: str, *arguments: str) -> str:
        command = [program, "-np", str(ranks), *RUNNER, str(PROGRAMS / "recipes" / script), *arguments]
        return ok(run(*command, cwd=tmp_path, **environment)).stdout

    told = output_of(2, "sets_its_own_master.py", str(free_port()))
    assert all(f"rank {rank} of 2: sum 1" in told for rank in range(2))
    # (Lines of processes that a rank has started may run into one another.)
    told = output_of(1, "spawns_its_ranks.py", str(free_port()))
    assert told.count("of 2 at") == told.count("sum 3") == 2
