"""The launch recipes of courses and sites' documentation, with ``-m runner`` in the launched script's place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cluster.job_scripts import submit
from tests.cluster.launchers import BIN, INTEL, INTEL_MPIRUN, by_ssh
from tests.cluster.virtual import Cluster
from tests.launching import PROGRAMS, RUNNER, ok

RECIPES = PROGRAMS / "recipes"
TORCHRUN = str(BIN / "torchrun")
TWO_PER_NODE = ["-np", "4", "--map-by", "ppr:2:node", "--bind-to", "none", "--host", "node1:2,node2:2"]


def ranks(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("rank "))


def trained(text: str, snapshot: Path, local: list[int]) -> None:
    """snapshots.py ran two epochs on ranks with these local ranks."""
    assert ranks(text) == [f"rank {rank} local {own} of {len(local)}: 2 epochs" for rank, own in enumerate(local)]
    assert torch.load(snapshot)["epochs"] == 2


def test_a_torchrun_on_each_of_two_nodes(vc: Cluster) -> None:
    shape = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"]
    target = ["-m", "runner", str(RECIPES / "sharded_and_split.py")]
    text = submit(vc, RECIPES / "two_nodes_torchrun.sh", shape, TORCHRUN, *target, PORT=str(vc.free_port("node1")))
    assert ranks(text) == [f"rank {rank}: replica {rank // 2} split {rank % 2} falls True" for rank in range(4)]


@pytest.mark.parametrize(
    ("launcher", "environment", "local_ranks"),
    [
        ([str(BIN / "mpirun"), *TWO_PER_NODE], {"PRTE_MCA_prte_if_include": "eth0"}, [0, 1, 0, 1]),
        ([INTEL_MPIRUN, "-n", "2", "-ppn", "1", "-hosts", "node1,node2"], INTEL, [0, 0]),
    ],
    ids=["Open MPI", "Intel MPI"],
)
def test_mpirun_on_named_hosts(
    vc: Cluster, launcher: list[str], environment: dict[str, str], local_ranks: list[int], tmp_path: Path
) -> None:
    command = [*launcher, *RUNNER, str(RECIPES / "snapshots.py"), str(tmp_path / "snapshot.pt"), "2"]
    text = ok(vc.run("node1", command, **by_ssh(vc), **environment)).stdout
    trained(text, tmp_path / "snapshot.pt", local_ranks)
