"""Horovod's own scripts between two hosts: by MPI, and where no MPI started the ranks by the runner's meeting point."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cluster.launchers import BIN, LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.launching import BASE_PYTHON, RUNNER, ok, own_lines, packages_without, path_of
from tests.results import hosts, json_object


@pytest.mark.parametrize(("name", "slots"), [("openmpi5", [2, 1]), ("srun", [1, 1])])
def test_an_unmodified_horovod_script(vc: Cluster, name: str, slots: list[int]) -> None:
    done = ok(LAUNCHERS[name](vc, slots, [*RUNNER, path_of("horovod_training")]))
    local_ranks = [(local, size) for size in slots for local in range(size)]
    assert sorted(line for line in done.stdout.splitlines() if "same" in line) == [
        f"rank {rank} of {len(local_ranks)}, local {local} of {size}: same True"
        for rank, (local, size) in enumerate(local_ranks)
    ]


@pytest.mark.parametrize("way", ["--gloo", "--mpi"])
def test_horovodrun_between_two_hosts(way: str, vc: Cluster, tmp_path: Path) -> None:
    """It goes by ssh itself, or has mpirun do it."""
    options = ["--network-interfaces", "eth0", "-np", "2", "-H", "node1:1,node2:1"]
    if way == "--mpi":
        options.append(f"--mpi-args=--prtemca prte_if_include eth0 --prtemca plm_ssh_agent {vc.agent}")
    path = f"{vc.folder}:{BIN}:{os.environ['PATH']}"  # with what stands in for ssh

    def lines(*target: str) -> list[str]:
        done = ok(vc.run("node1", [str(BIN / "horovodrun"), way, *options, *RUNNER, *target], PATH=path))
        return [re.sub(r"^\[[\d,]+\]<stdout>: ?", "", line) for line in done.stdout.splitlines()]

    found = json_object("\n".join(lines("explain", "--json")))
    assert found["launcher"]["name"] == {"--gloo": "horovodrun", "--mpi": "openmpi"}[way]
    assert hosts(found) == {"node1": [0], "node2": [1]}
    trained = ["--strategy", "horovod", "--max-steps", "4", "--checkpoint-dir", str(tmp_path)]
    assert any(line.startswith("done: 4 steps") for line in lines("workloads.mnist", *trained, "--data", "fake"))


@pytest.mark.parametrize("bare", ["node1", "node2"])  # rank 0's, and the other
def test_a_host_without_horovod_is_named(bare: str, vc: Cluster, tmp_path: Path) -> None:
    """Its ranks alone know it; all end by one line."""
    packages = {left_out: packages_without(left_out, tmp_path / left_out) for left_out in ("none", "horovod")}
    choose = f"[ $(hostname) = {bare} ] && packages={packages['horovod']} || packages={packages['none']}"
    launch = f"PYTHONPATH=$packages exec {BASE_PYTHON} -m runner workloads.linear --strategy horovod --max-steps 1"
    done = LAUNCHERS["srun"](vc, [1, 1], ["bash", "-c", f"{choose}; {launch}"])
    assert done.returncode == 2
    (line,) = own_lines(done)
    assert line.startswith(f"runner: Horovod is not installed (host {bare}); make horovod ")
