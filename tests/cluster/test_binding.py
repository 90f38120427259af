"""``--bind`` where Slurm's task/affinity binds the ranks, or leaves them on the same cores."""

from __future__ import annotations

import json

import pytest

from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok, path_of


@pytest.mark.parametrize("bind", ["map_cpu:0", "none", "cores"])
def test_ranks_that_slurm_leaves_on_the_same_cores_get_their_own(binding: Cluster, bind: str) -> None:
    step = ["srun", "--ntasks=2", "--cpus-per-task=1", f"--cpu-bind={bind}", *RUNNER]
    done = ok(binding.run("node1", [*step, path_of("stays_on_its_cores")]))
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(rank["cores"] for rank in ranks) == [[0], [1]]
    facts = json.loads(ok(binding.run("node1", [*step, "explain", "--json"])).stdout)
    assert facts["binding"].startswith("as Slurm" if bind == "cores" else "each rank has cores of its own")
