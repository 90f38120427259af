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


def test_a_host_without_horovod_is_named(vc: Cluster, tmp_path: Path) -> None:
    """Its ranks alone know it; all end by one line."""
    packages = {
        host: packages_without(left_out, tmp_path / host) for host, left_out in (("node1", "-"), ("node2", "horovod"))
    }
    launch = f"{BASE_PYTHON} -m runner workloads.linear --strategy horovod --max-steps 1"
    choose = f"case $(hostname) in node1) export PYTHONPATH={packages['node1']};; *) export PYTHONPATH={packages['node2']};; esac"
    done = LAUNCHERS["srun"](vc, [1, 1], ["bash", "-c", f"{choose}; exec {launch}"])
    assert done.returncode == 2
    (line,) = own_lines(done)
    assert line.startswith("runner: Horovod is not installed (host node2); make horovod builds and installs it")
