"""The time limit of a Slurm job: it saves, goes back into the queue, and continues at the right step."""

from __future__ import annotations

from pathlib import Path

from tests.campaigns.faults.scene import Scene, requeued
from tests.cluster.virtual import Cluster


def test_a_job_near_its_time_limit_is_queued_again_and_goes_on(vc: Cluster, tmp_path: Path) -> None:
    requeued(Scene(vc=vc, launcher="srun", folder=tmp_path))
