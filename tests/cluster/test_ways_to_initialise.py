"""What runs under plain mpirun runs under the runner, on an MPI that is not the tests' usual one; on this host."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.launchers import PREFIXES
from tests.launching import PROGRAMS, RUNNER, free_port, ok, run


def test_ranks_by_a_scripts_own_endpoint_and_by_spawning(tmp_path: Path) -> None:
    def output_of(ranks: int, script: str, *arguments: str) -> str:
        mpiexec = [str(PREFIXES / "mpich" / "bin" / "mpiexec"), "-np", str(ranks)]
        return ok(run(*mpiexec, *RUNNER, str(PROGRAMS / "recipes" / script), *arguments, cwd=tmp_path)).stdout

    told = output_of(2, "sets_its_own_master.py", str(free_port()))
    assert all(f"rank {rank} of 2: sum 1" in told for rank in range(2))
    # (Lines of processes that a rank has started may run into one another.)
    told = output_of(1, "spawns_its_ranks.py", str(free_port()))
    assert told.count("of 2 at") == told.count("sum 3") == 2
