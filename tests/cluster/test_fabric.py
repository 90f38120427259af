"""``doctor --fabric``: the interface that each backend really takes between two hosts."""

from __future__ import annotations

import json

import pytest

from tests.cluster.launchers import LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER


@pytest.mark.parametrize("launcher", ["openmpi4", "openmpi5", "mpich", "intelmpi", "srun"])
def test_where_the_bytes_go(vc: Cluster, launcher: str) -> None:
    done = LAUNCHERS[launcher](vc, (2, 2), [*RUNNER, "doctor", "--fabric", "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["fabric"]["status"] == "ok", checks
    # UCX, MPICH's first choice, knows by the kernel's boot id that virtual hosts are one machine, and takes its shared memory.
    mpi = {"srun": "", "mpich": "; MPI by no network that Linux counts (shared memory, or RDMA)"}
    assert checks["fabric"]["detail"] == "gloo by eth0 (TCP)" + mpi.get(launcher, "; MPI by eth0 (TCP)")


def test_tcp_beside_a_fast_network_is_a_warning(vc: Cluster) -> None:
    slingshot = 'mount -t tmpfs none /sys/class; mkdir -p /sys/class/net/hsn0; exec "$@"'
    command = ["unshare", "--mount", "bash", "-ec", slingshot, "bash", *RUNNER, "doctor", "--fabric", "--json"]
    done = LAUNCHERS["openmpi5"](vc, (1, 1), command)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["fabric"]["status"] == "warn", checks
    assert "used TCP on rank 0 (node1), which has hsn0" in checks["fabric"]["detail"]
