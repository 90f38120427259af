"""The smoke test where several hosts are: in an allocation, with a node file, with a host file."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster.launchers import PREFIXES, by_ssh
from tests.cluster.virtual import Cluster
from tests.launching import ROOT, RUNNER, ok, own_lines

MPICH = str(PREFIXES / "mpich" / "bin" / "mpiexec")


def jobs(text: str) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in json.loads(text)["jobs"]}


def mpich(vc: Cluster) -> dict[str, str]:
    return by_ssh(vc) | {"MPIRUN": MPICH}


def test_in_an_allocation_of_slurm(vc: Cluster) -> None:
    command = ["salloc", "-Q", "--nodes=2", "--ntasks-per-node=1", *RUNNER, "smoke", "--json"]
    found = jobs(ok(vc.run("node1", command)).stdout)
    assert {job["status"] for job in found.values()} <= {"ok", "warn"}
    assert "Slurm srun: 2 ranks, 1 on node1, 1 on node2" in found["explain"]["detail"]
    assert found["mnist"]["detail"].startswith("20 steps, test loss")
    assert not list(vc.folder.glob(".smoke-*"))


def test_with_the_node_file_of_a_pbs_job(vc: Cluster, tmp_path: Path) -> None:
    """The hosts are PBS's way of listing them, and the script is its script; PBS itself is not here."""
    nodes = tmp_path / "nodes"
    nodes.write_text("node1\nnode2\n")
    job = {"PBS_NODEFILE": str(nodes), "PBS_JOBID": "7"}
    script = ROOT / "mpi_scripts" / "pbs_mpirun.sh"
    started = ok(vc.run("node1", [str(script), "explain"], PYTHON=sys.executable, **job, **mpich(vc))).stdout
    assert started.startswith("launcher    MPICH: ")
    assert [line.split()[:2] for line in started.splitlines()[-2:]] == [["0", "node1"], ["1", "node2"]]

    done = vc.run("node1", [*RUNNER, "smoke"], cwd=tmp_path, **job, MPIRUN="/bin/false")
    assert f"PBS job, hosts of {nodes}" in done.stdout
    assert done.returncode == 1
    assert done.stdout.count("not started, as explain failed") == 2


def test_bad_host_files(vc: Cluster, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    for text, wanted in (
        ("node1\nghost\n", "ghost does not resolve here"),
        ("node1 slots=many\n", "'node1 slots=many' is not a host"),
        ("# nobody\n", "lists no host"),
    ):
        hosts.write_text(text)
        done = vc.run("node1", [*RUNNER, "smoke", "--hostfile", str(hosts)], **mpich(vc))
        assert done.returncode == 2
        (line,) = own_lines(done)
        assert wanted in line


def test_a_host_that_does_not_answer(vc: Cluster, tmp_path: Path) -> None:
    """ssh waits for it; the smoke test does not, and leaves nothing running."""
    before = set(vc.processes("node1"))
    waits, hosts = tmp_path / "ssh", tmp_path / "hosts"
    waits.write_text("#!/bin/bash\nexec sleep 300\n")
    waits.chmod(0o755)
    hosts.write_text("# ours\nnode1 slots=2\nnode2:1 # the small one\n")
    settings = mpich(vc) | {"HYDRA_LAUNCHER_EXEC": str(waits)}
    done = vc.run("node1", [*RUNNER, "smoke", "--limit", "3", "--hostfile", str(hosts)], **settings)
    assert done.returncode == 1
    assert f"hosts of {hosts}: node1:2,node2:1" in done.stdout
    assert "not done after 3 s" in done.stdout
    assert done.stdout.count("not started, as explain failed") == 2
    deadline = time.monotonic() + 10
    while (left := set(vc.processes("node1")) - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
