"""The states of a job whose hosts share no folder, found by the job's number."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from signal import SIGUSR1

from tests.cluster.virtual import Cluster
from tests.launching import ROOT, RUNNER, clean_environment, folder_of
from tests.results import refused


def test_they_come_to_the_first_rank_s_host(vc: Cluster, tmp_path: Path) -> None:
    job = ["faulty", "--log-dir", "/dev/shm/log", "--max-steps", "100000", "--checkpoint-dir", str(tmp_path / "run")]
    own = {"PYTHONPATH": f"{ROOT}:{folder_of('faulty')}", "XDG_CACHE_HOME": str(tmp_path)}
    command = ["srun", "--nodes=2", "--ntasks-per-node=1", *RUNNER, *job]
    process = subprocess.Popen(vc.command("node1", command), env=clean_environment() | vc.environment | own)
    try:
        states: list[dict[str, object]] = []
        deadline = time.monotonic() + 90
        while [one["status"] for one in states] != ["running"] * 2:
            assert process.poll() is None
            assert time.monotonic() < deadline, states
            time.sleep(0.5)
            for entry in (tmp_path / "torch-mpi-runner" / "jobs").glob("*.json"):
                number = entry.name.partition(".")[0]
                done = vc.run("node1", [*RUNNER, "top", number, "--json"], **own)
                states = json.loads(done.stdout)["ranks"] if done.returncode == 0 else []
        assert [one["host"] for one in states] == ["node1", "node2"]
        elsewhere = vc.run("node2", [*RUNNER, "top", number, "--json"], **own)
        refused(elsewhere, "leaves its states in /dev/shm/log of host node1, which is not seen here; run top on node1")
        process.send_signal(SIGUSR1)
        assert process.wait(60) == 75
    finally:
        process.kill()
        process.wait()
    assert not list((tmp_path / "torch-mpi-runner" / "jobs").glob("*.json"))
