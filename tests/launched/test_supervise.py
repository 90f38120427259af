"""supervise starts a job again where that helps, from its newest intact checkpoint, and not where it does not."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from signal import SIGSTOP, SIGUSR1
from typing import Any

import psutil
import pytest

from runner.base.locks import held
from tests.launching import RUNNER, finish, folder_of, run, start, under_mpirun
from tests.polling import LIMIT, poll_until
from tests.processes import is_worker
from tests.results import metrics, refused, wait_for_phase


def supervised(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A training of 60 steps on two ranks, saved every 20 steps."""
    job = under_mpirun(2, *RUNNER, "faulty", "--resume", "auto", "--checkpoint-dir", str(folder / "run"))
    job += [*["--save-every", "end", "--save-every", "20steps", "--max-steps", "60", "--milliseconds", "1"], *arguments]
    return run(*RUNNER, "supervise", "--log-dir", str(folder / "log"), *options, "--", *job, cwd=folder_of("faulty"))


def attempts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log" / "attempts.jsonl").read_text().splitlines()]


def test_a_killed_job_goes_on_and_the_same_failure_twice_ends_it(tmp_path: Path) -> None:
    done = supervised(tmp_path, "--fault", "SIGKILL", "--at", "31", "--once", str(tmp_path / "once"))
    assert done.returncode == 0, done.stderr
    first, second = attempts(tmp_path)
    expected = {"code": 137, "rank": 1, "what": "killed by SIGKILL", "ended_by": "SIGKILL", "next": "started again"}
    assert expected.items() <= first.items()
    assert (second["code"], second["next"]) == (0, "done")
    assert f"{tmp_path}/run/step-20," in done.stdout
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(1, 61))
    state = json.loads((tmp_path / "log" / "attempt-2" / "state" / "rank-00001.json").read_text())
    assert (state["phase"], state["exit_code"], state["step"], state["steps"]) == ("ended", 0, 60, 60)

    done = supervised(tmp_path, "--fault", "raise", "--at", "70", "--max-steps", "90")
    assert done.returncode == 1
    # another supervise in the same folder continues with its log
    assert [one["number"] for one in attempts(tmp_path)] == [1, 2, 3, 4]
    assert [one["what"] for one in attempts(tmp_path)][2:] == ["ValueError: odd"] * 2
    assert "supervise: attempt 4 ended with code 1 after " in done.stderr


def test_what_a_restart_does_not_mend_is_not_started_again(tmp_path: Path) -> None:
    done = supervised(tmp_path, "--epochs", "none")
    assert done.returncode == 2
    assert "no --resume auto" not in done.stderr
    assert len(attempts(tmp_path)) == 1
    done = supervised(tmp_path, "--fault", "exit7", options=("--max-restarts", "0"))
    assert done.returncode == 7
    assert [one["next"] for one in attempts(tmp_path)][1:] == ["--max-restarts 0 are over"]


def test_a_workload_that_would_begin_again_is_named(tmp_path: Path) -> None:
    job = [*RUNNER, "faulty", "--epochs", "none"]
    done = run(*RUNNER, "supervise", "--log-dir", str(tmp_path / "log"), "--", *job, cwd=folder_of("faulty"))
    assert "supervise: the command has no --resume auto; unless the workload's settings do, each" in done.stderr


def test_options_that_only_the_ranks_can_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("epochs = 0\n")
    job = ["env", "-C", str(tmp_path), *RUNNER, "--config", "own.toml", "workloads.linear"]
    done = run(*RUNNER, "supervise", "--log-dir", str(tmp_path / "log"), "--", *job)
    told = "the command's options are not checked, nor whether it resumes: --config own.toml: No such file or directory"
    assert f"supervise: {told}; name a file that all ranks can read\n" in done.stderr
    assert "own.toml: epochs: " in done.stderr
    assert done.returncode == 2


def test_the_time_limit_counts_from_the_first_attempt(tmp_path: Path) -> None:
    endless = ["--max-steps", "100000", "--milliseconds", "5", "--save-every", "2steps"]
    once = ["--fault", "SIGKILL", "--at", "5", "--once", str(tmp_path / "once")]
    done = supervised(tmp_path, *endless, *once, "--time-limit", "0:25")
    assert done.returncode == 75
    first, second = attempts(tmp_path)
    assert first["what"] == "killed by SIGKILL"
    saved = max(checkpoint.stat().st_mtime for checkpoint in (tmp_path / "run").glob("step-*"))
    assert saved - second["began"] < 22.5  # a job saves after nine tenths of its time, of which the first has used some


def test_a_signal_between_two_attempts_is_received(tmp_path: Path) -> None:
    job = under_mpirun(2, *RUNNER, "faulty", "--checkpoint-dir", str(tmp_path / "run"), "--log-every", "1")
    process = start(*RUNNER, "supervise", "--log-dir", str(tmp_path / "log"), "--", *job, cwd=folder_of("faulty"))
    try:
        poll_until((tmp_path / "run" / "metrics.jsonl").exists, LIMIT, "the training has begun", process)
        below = psutil.Process(process.pid).children(recursive=True)
        next(one for one in below if is_worker(one)).send_signal(SIGSTOP)  # it ends five seconds after mpirun
        next(one for one in below if one.name() in ("mpirun", "prterun")).kill()
        time.sleep(0.5)
        process.send_signal(SIGUSR1)
        _, stderr = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 75, stderr
    assert "SIGUSR1 came, so it is not started again" in stderr


def test_the_next_start_has_the_import_of_the_last_and_nothing_outlives_supervise(tmp_path: Path) -> None:
    job = under_mpirun(2, *RUNNER, "faulty", "--checkpoint-dir", str(tmp_path / "run"), "--resume", "auto")
    job += ["--milliseconds", "20", "--save-every", "20steps"]
    process = start(*RUNNER, "supervise", "--log-dir", str(tmp_path / "log"), "--", *job, cwd=folder_of("faulty"))
    importers = list[psutil.Process | None]()
    try:
        for attempt in (1, 2):
            folder = tmp_path / "log" / f"attempt-{attempt}"
            workers = [psutil.Process(wait_for_phase(process, folder, rank, "training")["pid"]) for rank in range(2)]
            importers += [one.parent() for one in workers]
            if attempt == 1:
                workers[1].kill()
        assert len({*importers}) == 1
        agents = [one.parent() for one in importers if one is not None]
        below = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        finish(process)
    assert not psutil.wait_procs(filter(None, {*workers, *importers, *agents, *below}), timeout=LIMIT)[1]


def test_an_error_before_the_first_step_that_comes_again_ends_it(tmp_path: Path) -> None:
    job = under_mpirun(2, *RUNNER, "resumable", "--resume", "auto", "--checkpoint-dir", str(tmp_path / "run"))
    job += ["--nan-gradient", "--check-finite"]
    done = run(*RUNNER, "supervise", "--log-dir", str(tmp_path / "log"), "--", *job, cwd=folder_of("resumable"))
    assert done.returncode == 1
    _, second = attempts(tmp_path)
    assert second["next"] == "the same error before the first step, as before"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--", "sleep", "1"], "supervise: the command does not start a runner; for example"),
        (
            ["--", "mpirun", *RUNNER, "faulty", "--log-dir", "here"],
            "supervise: --log-dir is given to the command; give it to supervise, before the --",
        ),
        (
            ["--log-dir", "/proc/nothing", "--", *RUNNER, "explain"],
            "--log-dir: cannot write /proc/nothing: No such file or directory; name another folder",
        ),
    ],
)
def test_what_cannot_be_supervised_is_refused(words: list[str], told: str) -> None:
    refused(run(*RUNNER, "supervise", *words), f"runner: {told}")


def test_a_second_one_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    command = [*RUNNER, "supervise", "--log-dir", str(tmp_path), "--", *RUNNER, "explain"]
    with held([(tmp_path, "--log-dir")], print):
        done = run(*command)
    assert done.returncode == 2
    *_, message = done.stderr.splitlines()
    assert message == (
        f"runner: --log-dir: process {os.getpid()} on host {os.uname().nodename} writes to {tmp_path}; "
        "wait for its end, or name another place"
    )
    assert run(*command).returncode == 0
