"""When a job has to save."""

from __future__ import annotations

import time

import pytest

from runner.launch.time_limit import time_to_save


def test_a_minute_before_the_limit_or_a_tenth_of_the_time() -> None:
    end = int(time.time()) + 3600
    assert time_to_save({"SLURM_JOB_END_TIME": str(end)}, None, 100.0) == pytest.approx(3540, abs=3)
    assert time_to_save({"PBS_WALLTIME": "100"}, None, 0.0) == 90
    assert time_to_save({"SLURM_JOB_END_TIME": "1", "PBS_WALLTIME": "100"}, None, 0.0) == 0  # it is over
    assert time_to_save({"SLURM_JOB_END_TIME": "unknown"}, None, 0.0) is None


def test_both_count_from_the_jobs_start_and_what_the_user_says_is_first() -> None:
    assert time_to_save({"PBS_WALLTIME": "100"}, None, 50.0) == 45
    assert time_to_save({"PBS_WALLTIME": "100"}, 7200.0, 60.0) == 7080
