"""Horovod's own scripts between two hosts: by MPI, and where no MPI started the ranks by the runner's meeting point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launchers import LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.launching import BASE_PYTHON, RUNNER, SCRIPTS, ok, own_lines, packages_without


@pytest.mark.parametrize(("name", "slots"), [("openmpi5", [2, 1]), ("srun", [1, 1])])
def test_an_unmodified_horovod_script(vc: Cluster, name: str, slots: list[int]) -> None:
    done = ok(LAUNCHERS[name](vc, slots, [*RUNNER, str(SCRIPTS / "horovod_training.py")]))
    local_ranks = [(local, size) for size in slots for local in range(size)]
    assert sorted(line for line in done.stdout.splitlines() if "same" in line) == [
        f"rank {rank} of {len(local_ranks)}, local {local} of {size}: same True"
        for rank, (local, size) in enumerate(local_ranks)
    ]


@pytest.mark.parametrize("bare", ["node1", "node2"])  # rank 0's, and the other
def test_a_host_without_horovod_is_named(bare: str, vc: Cluster, tmp_path: Path) -> None:
    """Its ranks alone know it; all end by one line."""
    packages = {left_out: packages_without(left_out, tmp_path / left_out) for left_out in ("none", "horovod")}
    choose = f"[ $(hostname) = {bare} ] && packages={packages['horovod']} || packages={packages['none']}"
    launch = f"PYTHONPATH=$packages exec {BASE_PYTHON} -m runner workloads.linear --strategy horovod --max-steps 1"
    done = LAUNCHERS["srun"](vc, [1, 1], ["bash", "-c", f"{choose}; {launch}"])
    assert done.returncode == 2
    (line,) = own_lines(done)
    assert line.startswith(f"runner: Horovod is not installed (host {bare}); make horovod builds and installs it")
