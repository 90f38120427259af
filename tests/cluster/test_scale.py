"""Scaling studies by jobs of a real Slurm, on one host and on two, and in one launch on both."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, ok, path_of
from tests.polling import poll_until

JOB = ["--nodes=1,2", "--cores-per-rank=1", "--time-limit=0:05:00", "--mpi=srun", "--submit"]
SHORT = ["--steps=4", "--warmup=1", "--scaling=weak"]
PATIENCE = 240.0


def all_jobs_ended(vc: Cluster) -> None:
    poll_until(
        lambda: not ok(vc.run("node1", ["squeue", "--noheader"])).stdout.strip(), PATIENCE, "an empty queue", None
    )


def study(folder: Path) -> dict[int, dict[str, Any]]:
    content = json.loads((folder / "study.json").read_text())
    assert content["facts"]["hosts"] == 2
    assert "torch" in content["facts"]["versions"]
    return {size["ranks"]: size for size in content["sizes"]}


def test_a_workload_and_a_script_by_jobs_on_one_host_and_on_two(vc: Cluster, tmp_path: Path) -> None:
    resnet = ["workloads.resnet", "--image-size", "32", "--batch-size", "2"]
    script = ["--batch-size=16", path_of("ddp_training")]
    for name, rounds, target in (("resnet", 2, resnet), ("script", 1, script)):
        folder = tmp_path / name
        folder.mkdir()
        command = [*RUNNER, "scale", *JOB, *SHORT, f"--rounds={rounds}", f"--folder={folder}/jobs", *target]
        submitted = ok(vc.run("node1", command)).stdout
        assert submitted.count("Submitted batch job") == 2
        all_jobs_ended(vc)
        files = [f"--{kind}={folder}/study.{kind}" for kind in ("json", "csv")]
        shown = ok(vc.run("node1", [*RUNNER, "scale", f"--collect={folder}/jobs", *files])).stdout
        sizes = study(folder)
        each = 2 if name == "resnet" else 16
        assert [(n, size["hosts"], size["batch"], len(size["rounds"])) for n, size in sizes.items()] == [
            (1, 1, each, rounds),
            (2, 2, 2 * each, rounds),
        ], shown
        assert sizes[2]["exposed"] > sizes[1]["exposed"]
        with (folder / "study.csv").open() as file:
            assert [float(row["step_ms"]) > 0 for row in csv.DictReader(file)] == [True, True]
        assert "weak scaling" in shown


def test_a_job_that_fails_and_one_that_waits_have_their_causes_in_their_rows(vc: Cluster, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import os\nimport torch\n"
        "if os.environ['WORLD_SIZE'] == '2':\n    raise ValueError('two are too many')\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "for _ in range(20):\n    optimizer.step()\n"
    )
    command = [
        *RUNNER,
        "scale",
        *JOB,
        "--directive=--begin=now+1hour",
        *SHORT,
        "--rounds=1",
        f"--folder={tmp_path}/jobs",
        f"{tmp_path}/two.py",
    ]
    waiting = ok(vc.run("node1", command)).stdout.split("batch job ")[1:]
    numbers = [text.split()[0] for text in waiting]
    done = vc.run("node1", [*RUNNER, "scale", f"--collect={tmp_path}/jobs"])
    assert done.returncode == 1
    assert f"its job has not begun, or was cancelled before (Submitted batch job {numbers[0]})" in done.stdout
    ok(vc.run("node1", ["scontrol", "update", f"JobId={','.join(numbers)}", "StartTime=now"]))
    all_jobs_ended(vc)
    time.sleep(0.5)
    shown = ok(vc.run("node1", [*RUNNER, "scale", f"--collect={tmp_path}/jobs"])).stdout
    assert "failed: ValueError: two are too many" in shown
    assert "1 weak: not measured" not in shown


def test_in_one_launch_over_two_hosts_whole_hosts_come_first(vc: Cluster, tmp_path: Path) -> None:
    command = [
        "srun",
        "--nodes=2",
        "--ntasks-per-node=2",
        *RUNNER,
        "scale",
        *SHORT,
        "--rounds=1",
        "--interval=9",
        "--ranks=2,4",
    ]
    ok(vc.run("node1", [*command, f"--json={tmp_path}/study.json", path_of("ddp_training")], timeout=PATIENCE))
    sizes = study(tmp_path)
    assert [(n, size["hosts"], bool(size["rounds"])) for n, size in sizes.items()] == [(2, 1, True), (4, 2, True)]
