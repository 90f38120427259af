"""When a job has to save."""

from __future__ import annotations

import time

import pytest

from runner.launch.time_limit import margin, time_left


def test_the_time_that_is_left_is_the_schedulers() -> None:
    end = int(time.time()) + 3600
    assert time_left({"SLURM_JOB_END_TIME": str(end)}, None, 100.0) == pytest.approx(3600, abs=3)
    assert time_left({"PBS_WALLTIME": "100"}, None, 0.0) == 100
    assert time_left({"SLURM_JOB_END_TIME": "1", "PBS_WALLTIME": "100"}, None, 0.0) == 0  # it is over
    assert time_left({"SLURM_JOB_END_TIME": "unknown"}, None, 0.0) is None


def test_it_counts_from_the_jobs_start_and_what_the_user_says_is_first() -> None:
    assert time_left({"PBS_WALLTIME": "100"}, None, 50.0) == 50
    assert time_left({"PBS_WALLTIME": "100"}, 7200.0, 60.0) == 7140


def test_a_minute_before_the_limit_or_a_tenth_of_the_time() -> None:
    assert (margin(3600, None), margin(100, None), margin(-5, None)) == (60, 10, 0)
    assert margin(3600, 400) == 400
