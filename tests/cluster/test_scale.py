"""A scaling study in a job of a real Slurm, on one host and on two."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok, path_of
from tests.polling import poll_until

PATIENCE = 240.0


def test_it_runs_each_size_in_one_job(vc: Cluster, tmp_path: Path) -> None:
    job = ["--nodes=2", "--cores-per-rank=1", "--time-limit=0:05:00", "--mpi=srun", f"--log={tmp_path}/out", "--submit"]
    words = ["scale", "--steps=4", "--warmup=1", "--rounds=1", "--batch-size=16", f"--json={tmp_path}/study.json"]
    command = [*RUNNER, "jobscript", *job, *words, path_of("ddp_training")]
    assert "Submitted batch job" in ok(vc.run("node1", command, cwd=tmp_path)).stdout
    poll_until(
        lambda: not ok(vc.run("node1", ["squeue", "--noheader"])).stdout.strip(), PATIENCE, "an empty queue", None
    )
    shown = (tmp_path / "out").read_text()
    content = json.loads((tmp_path / "study.json").read_text())
    found = [(size["ranks"], size["hosts"], size["batch"], bool(size["rounds"])) for size in content["sizes"]]
    assert found == [(1, 1, 16, True), (2, 2, 32, True)], shown
    assert content["facts"]["hosts"] == 2
    assert "weak scaling" in shown
