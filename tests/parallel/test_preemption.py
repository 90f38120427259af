"""A signal or the time limit: all ranks save at one step, and end with the exit code that asks to be run again."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from signal import SIGTERM, SIGUSR1
from subprocess import PIPE

import psutil
import pytest

from runner.training.checkpoint_folder import unseal
from tests.launching import RUNNER, SCRIPTS, clean_environment, mpirun_path, ok
from tests.results import metrics
from tests.turns import Turns

LONG = ["resumable", "--epochs", "2000", "--batch-size", "4", "--save-every", "0", "--log-every", "1"]


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A training on two ranks, in its first steps."""
    command = [mpirun_path(), "-np", "2", *RUNNER, *LONG, "--checkpoint-dir", str(folder), *arguments]
    process = subprocess.Popen(command, cwd=SCRIPTS, env=clean_environment(), stdout=PIPE, stderr=PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists() or not metrics(folder):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def saved_step(folder: Path) -> int:
    """The step of the only checkpoint, up to which there are metrics."""
    (path,) = folder.glob("step-*")
    step = unseal(path)[0].position.step
    assert [line["step"] for line in metrics(folder)] == list(range(1, step + 1))
    return step


def test_a_signal_saves_and_asks_for_another_run(turns: Turns, tmp_path: Path) -> None:
    process = started(tmp_path / "parts")
    process.send_signal(SIGUSR1)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    step = saved_step(tmp_path / "parts")
    assert said.count("runner: ") == 1
    assert f"runner: SIGUSR1: saved {tmp_path}/parts/step-{step}; go on with --resume" in said
    # it goes on as if nothing had been
    more = ["--max-steps", str(step + 8)]
    ok(turns(2, *LONG, "--checkpoint-dir", str(tmp_path / "parts"), "--resume", *more))
    ok(turns(2, *LONG, "--checkpoint-dir", str(tmp_path / "whole"), *more))
    parts, whole = ([line["loss"] for line in metrics(tmp_path / name)] for name in ("parts", "whole"))
    assert parts == whole


@pytest.mark.parametrize("arguments", [["--time-limit", "0:1"], ["--time-limit", "0:1", "--save-async"]])
def test_the_time_limit_does_so_before_it_is_over(arguments: list[str], turns: Turns, tmp_path: Path) -> None:
    done = turns(2, *LONG, "--checkpoint-dir", str(tmp_path), *arguments)
    assert done.returncode == 75
    assert f"the time limit is near: saved {tmp_path}/step-{saved_step(tmp_path)}; go on with --resume" in done.stderr


def test_a_rank_that_alone_gets_sigterm_takes_the_others_with_it(tmp_path: Path) -> None:
    process = started(tmp_path)
    worker = max(psutil.Process(process.pid).children(recursive=True), key=lambda one: one.memory_info().rss)
    worker.send_signal(SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert f"SIGTERM: saved {tmp_path}/step-{saved_step(tmp_path)}" in said


def test_requeue_is_refused_where_nothing_queues(turns: Turns, tmp_path: Path) -> None:
    done = turns(1, *LONG, "--checkpoint-dir", str(tmp_path), "--requeue")
    assert done.returncode == 2
    assert "--requeue: this is no Slurm job; leave it out" in done.stderr
