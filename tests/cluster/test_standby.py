"""supervise --standby in an allocation of a real Slurm, whose steps wait for one another unless they may overlap."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from signal import SIGUSR1

import psutil

from tests.cluster.launchers import slurm_shape
from tests.cluster.virtual import Cluster
from tests.launching import ROOT, RUNNER, clean_environment, folder_of
from tests.polling import LIMIT
from tests.results import see_the_next_start_go_on


def test_in_an_allocation_the_next_start_is_ready_too(vc: Cluster, tmp_path: Path) -> None:
    job = [
        "srun",
        "--kill-on-bad-exit",
        *RUNNER,
        "faulty",
        "--checkpoint-dir",
        str(tmp_path / "run"),
        "--resume",
        "auto",
    ]
    job += ["--milliseconds", "20", "--save-every", "20steps"]
    supervise = [*RUNNER, "supervise", "--standby", "--log-dir", str(tmp_path / "log"), "--", *job]
    command = vc.command("node1", ["salloc", "--quiet", *slurm_shape(vc, [1, 1]), *supervise])
    environment = clean_environment() | vc.environment | {"PYTHONPATH": f"{ROOT}:{folder_of('faulty')}"}
    with open(tmp_path / "errors", "w") as errors:
        process = subprocess.Popen(command, env=environment, cwd=vc.folder, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        see_the_next_start_go_on(process, tmp_path / "log")
        below = psutil.Process(process.pid).children(recursive=True)
        next(one for one in below if "supervise" in one.cmdline()).send_signal(SIGUSR1)
        assert process.wait(timeout=LIMIT) == 75, (tmp_path / "errors").read_text()
    finally:
        process.terminate()
        process.wait(timeout=LIMIT)
    attempts = [json.loads(line) for line in (tmp_path / "log" / "attempts.jsonl").read_text().splitlines()]
    assert len(attempts) == 2
