"""Two jobs in one folder: the second is refused before it touches anything, and the next takes what a killed job left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.launching import RUNNER, finish, ok, run, start, under_mpirun
from tests.polling import poll_until
from tests.results import metrics, refused, wait_for_phase

ENDLESS = ["workloads.linear", "--epochs", "1000000", "--save-every", "end", "--save-every", "20steps"]


def test_the_second_is_refused_and_the_first_goes_on_until_it_fails(tmp_path: Path) -> None:
    place = ["--checkpoint-dir", str(tmp_path / "runs"), "--log-dir", str(tmp_path / "log")]
    first = start(*under_mpirun(2, *RUNNER, *ENDLESS, *place))
    try:
        lost = wait_for_phase(first, tmp_path / "log", 1, "training")["pid"]
        poll_until(lambda: [*(tmp_path / "runs").glob("step-*")] or None, 200, "there is a checkpoint", first)
        second = run(*RUNNER, *ENDLESS, *place[:2])
        refused(second, "--checkpoint-dir: process ", f" writes to {tmp_path}/runs; wait for its end, or name another")
        elsewhere = ["--checkpoint-dir", str(tmp_path / "other"), "--metrics", str(tmp_path / "runs" / "metrics.jsonl")]
        refused(run(*RUNNER, *ENDLESS, *elsewhere), "--metrics: process ")
        assert first.poll() is None
        os.kill(lost, signal.SIGKILL)  # rank 0 waits for it, and is killed by its guard
        finish(first, 120)
    finally:
        first.kill()
    steps = [line["step"] for line in metrics(tmp_path / "runs")]
    assert steps == list(range(1, len(steps) + 1))
    told = ok(run(*RUNNER, "workloads.linear", "--epochs", "1", *place[:2]))  # a killed job leaves its lock
    assert "still writes" not in told.stderr
    assert [*(tmp_path / "runs").glob(".*in-use*")] == []
