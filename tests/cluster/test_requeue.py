"""The time limit of a Slurm job: it saves, goes back into the queue, and goes on at the right step."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.test_job_scripts import FOLDER, submit
from tests.cluster.virtual import Cluster
from tests.launching import ROOT, SCRIPTS
from tests.results import metrics


def test_a_job_near_its_time_limit_is_queued_again_and_goes_on(vc: Cluster, tmp_path: Path) -> None:
    request = ["--requeue", "--ntasks-per-node=1", "--cpus-per-task=1"]
    target = ["faulty", "--resume", "auto", "--requeue", "--time-limit", "0:20", "--checkpoint-dir", str(tmp_path)]
    target += ["--save-every", "0", "--max-steps", "60", "--fault", "pause", "--at", "31", "--once", f"{tmp_path}/once"]
    text = submit(vc, FOLDER / "slurm_srun.sh", request, *target, PYTHONPATH=f"{ROOT}:{SCRIPTS}")
    saved = re.findall(
        r"the time limit is near: saved \S+/(step-\d+), back in Slurm's queue; go on with --resume", text
    )
    resumed = re.findall(r"going on from \S+/(step-\d+)", text)
    assert saved, text
    assert saved == resumed
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 61))
