"""How long a job has left, and when it has to save. That the real Slurm says so is tried by make test-faults, case 13."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runner.launch.time_limit import margin, time_left


def test_the_time_that_is_left_is_what_the_user_or_the_scheduler_says() -> None:
    end = int(time.time()) + 3600
    assert time_left({"SLURM_JOB_END_TIME": str(end)}, None, 100.0) == pytest.approx(3600, abs=3)
    assert time_left({"PBS_WALLTIME": "100"}, None, 0.0) == 100
    assert time_left({"SLURM_JOB_END_TIME": "1", "PBS_WALLTIME": "100"}, None, 0.0) == 0  # it is over
    assert time_left({"SLURM_JOB_END_TIME": "unknown"}, None, 0.0) is None
    assert time_left({"PBS_WALLTIME": "100"}, None, 50.0) == 50  # it counts from the job's start
    assert time_left({"PBS_WALLTIME": "100"}, 7200.0, 60.0) == 7140


@pytest.mark.parametrize(
    ("answer", "left"), [("59:00", 3540.0), ("1-00:00:01", 86401.0), ("UNLIMITED", None), ("INVALID", None), ("", None)]
)
def test_where_no_variable_says_it_squeue_is_asked(
    answer: str, left: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n[ $2 = --jobs=17 ] && echo {answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = {"SLURM_JOB_ID": "17"}
    assert time_left(job, None, 0.0, may_ask=True) == left
    assert time_left(job, None, 0.0) is None
    assert time_left({}, None, 0.0, may_ask=True) is None
    assert time_left(job | {"PBS_WALLTIME": "100"}, None, 0.0, may_ask=True) == 100
    assert time_left(job, 7200.0, 60.0, may_ask=True) == 7140
    monkeypatch.setenv("PATH", "")
    assert time_left(job, None, 0.0, may_ask=True) is None


def test_a_minute_before_the_limit_or_a_tenth_of_the_time() -> None:
    assert (margin(3600, None), margin(100, None), margin(-5, None)) == (60, 10, 0)
    assert margin(3600, 400) == 400
