"""What runs under plain mpirun runs under the runner, on the MPIs that are not the tests' usual one; on this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launchers import DEBIAN_MPIRUN, INTEL, INTEL_MPIRUN, PREFIXES
from tests.launching import RUNNER, SCRIPTS, WAYS_BY_OWN_STORE, free_port, ok, run

MPIS = {
    "openmpi4": (DEBIAN_MPIRUN, {}),
    "mpich": (str(PREFIXES / "mpich" / "bin" / "mpiexec"), {}),
    "intelmpi": (INTEL_MPIRUN, INTEL),
}


@pytest.mark.parametrize("mpi", MPIS)
def test_every_form_of_init_process_group(mpi: str, tmp_path: Path) -> None:
    program, environment = MPIS[mpi]

    def output_of(script: str, *arguments: str) -> str:
        command = [program, "-np", "2", *RUNNER, str(SCRIPTS / script), *arguments]
        return ok(run(*command, cwd=tmp_path, **environment)).stdout

    ways = (*WAYS_BY_OWN_STORE, "rank")
    wanted = [f"{way}: rank {rank}: 3" for way in ways for rank in range(2)]
    assert sorted(output_of("ways_to_initialise.py", *ways).splitlines()) == sorted(wanted)
    told = output_of("recipes/sets_its_own_master.py", str(free_port()))
    assert all(f"rank {rank} of 2: sum 1" in told for rank in range(2))
    # (Lines of processes that a rank has started may run into one another.)
    told = output_of("recipes/spawns_its_ranks.py", str(free_port()))
    assert told.count("of 2 at") == told.count("sum 3") == 4
