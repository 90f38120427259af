"""The smoke test where several hosts are: in an allocation, with a node file, with a list of hosts."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.launchers import PREFIXES, by_ssh
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok

MPICH = str(PREFIXES / "mpich" / "bin" / "mpiexec")


def mpich(vc: Cluster) -> dict[str, str]:
    return by_ssh(vc) | {"MPIRUN": MPICH}


def test_in_an_allocation_of_slurm(vc: Cluster) -> None:
    done = ok(vc.run("node1", ["salloc", "-Q", "--nodes=2", "--ntasks-per-node=1", *RUNNER, "smoke"]))
    assert "\nlauncher    Slurm srun: " in done.stdout
    assert done.stdout.endswith("\nexplain  pass\ndoctor   pass\nmnist    pass\n")
    assert not list(vc.folder.glob(".smoke-*"))


def test_with_the_node_file_of_a_pbs_job(vc: Cluster, tmp_path: Path) -> None:
    """The hosts are PBS's way of listing them, and the script is its script; PBS itself is not here."""
    nodes = tmp_path / "nodes"
    nodes.write_text("node1\nnode2\n")
    job = {"PBS_NODEFILE": str(nodes), "PBS_JOBID": "7"}
    script = str(tmp_path / "job.sh")
    words = ["jobscript", "--scheduler=pbs", "--mpi=mpich", f"--output={script}", "explain"]
    ok(vc.run("node1", [*RUNNER, *words], **mpich(vc)))
    started = ok(vc.run("node1", [script], **job, **mpich(vc))).stdout
    assert started.startswith("launcher    MPICH: ")
    assert [line.split()[:2] for line in started.splitlines()[-2:]] == [["0", "node1"], ["1", "node2"]]

    done = vc.run("node1", [*RUNNER, "smoke"], cwd=tmp_path, **job, MPIRUN="/bin/false")
    assert done.returncode == 1
    assert "/pbs.sh --device auto explain\n" in done.stdout
    assert "explain  fail: exit code 1" in done.stdout


def test_a_host_that_does_not_answer(vc: Cluster, tmp_path: Path) -> None:
    """ssh waits for it; the smoke test does not, and leaves nothing running."""
    before = set(vc.processes("node1"))
    waits = tmp_path / "ssh"
    waits.write_text("#!/bin/bash\nexec sleep 300\n")
    waits.chmod(0o755)
    settings = mpich(vc) | {"HYDRA_LAUNCHER_EXEC": str(waits), "HOSTS": "node1:2,node2:1", "RANKS": "3"}
    done = vc.run("node1", [*RUNNER, "smoke", "--limit", "3"], **settings)
    assert done.returncode == 1
    assert "explain  fail: not done after 3 s" in done.stdout
    deadline = time.monotonic() + 10
    while (left := set(vc.processes("node1")) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
