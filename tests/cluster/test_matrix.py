"""Every launcher starts ranks on one host and on two: who they are, a script written for torchrun, a few steps of training.

What they compute is tested under one launcher, in tests/launched.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.launchers import LAUNCHERS
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok, path_of

# Inside sbatch it is the same mpirun as outside: test_job_scripts.py has those.
NAMES = [name for name in LAUNCHERS if not name.startswith("sbatch-")]
# torchrun, started by srun once per node, has the same number of workers on each.
CELLS = [(name, [2, 2] if name == "srun-torchrun" else [3, 1]) for name in NAMES]
ONE_HOST = [("openmpi5", [2]), ("srun", [2])]
DETECTED = {"srun": "slurm", "srun-pmi2": "slurm", "srun-torchrun": "torchrun"}


def launch(vc: Cluster, name: str, slots: Sequence[int], *arguments: str) -> str:
    return ok(LAUNCHERS[name](vc, slots, [*RUNNER, *arguments])).stdout


@pytest.mark.parametrize(("name", "slots"), CELLS + ONE_HOST)
def test_explain_tells_the_truth(vc: Cluster, name: str, slots: list[int]) -> None:
    found: dict[str, Any] = json.loads(launch(vc, name, slots, "explain", "--json"))
    assert found["launcher"]["name"] == DETECTED.get(name, name.rstrip("45"))
    assert found["size"] == sum(slots)
    assert {host["name"]: len(host["ranks"]) for host in found["hosts"]} == dict(zip(vc.hosts, slots, strict=False))
    assert sorted(rank for host in found["hosts"] for rank in host["ranks"]) == list(range(sum(slots)))
    for host in found["hosts"]:
        local = [rank["local_rank"] for rank in found["ranks"] if rank["host"] == host["name"]]
        assert sorted(local) == list(range(len(host["ranks"])))
    endpoint = found["endpoint"]
    if "torchrun" not in name:
        here = ("127.0.0.1", "lo") if len(slots) == 1 else (vc.address("node1"), "eth0")
        assert (endpoint["host"], endpoint["interface"]) == here


@pytest.mark.parametrize("name", NAMES)
def test_an_unmodified_torchrun_script(vc: Cluster, name: str) -> None:
    assert launch(vc, name, [1, 1], path_of("ddp_allreduce")).count("of 2: 2") == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_few_steps_of_training(vc: Cluster, name: str, tmp_path: Path) -> None:
    options = ["--max-steps", "5", "--checkpoint-dir", str(tmp_path)]
    slots = [2, 2] if name == "srun-torchrun" else [2, 1]  # messages inside a host and between hosts
    assert "done: 5 steps" in launch(vc, name, slots, "workloads.linear", *options)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 5
