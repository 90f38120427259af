"""When a job has to save: before its time limit, as the user or the scheduler tells it."""

from __future__ import annotations

import time
from collections.abc import Mapping

_MARGIN = 60.0  # seconds before the time limit that are left for the checkpoint, at most a tenth of the time


def time_to_save(environment: Mapping[str, str], limit: float | None, passed: float) -> float | None:
    """Seconds from now until a job is to save, and to end; None if its time limit is not known.

    Args:
        limit: seconds that the job may run; None: as the scheduler says, if it does.
        passed: seconds since the job began.
    """
    left = _time_left(environment, passed) if limit is None else limit - passed
    return None if left is None else max(0.9 * left, left - _MARGIN)


def _time_left(environment: Mapping[str, str], passed: float) -> float | None:
    """Seconds until the scheduler ends this job, where it says so: Slurm after 22.05 (SLURM_JOB_END_TIME, seconds since 1970).

    TORQUE has PBS_WALLTIME, the seconds of the whole job; it does not say when it began.
    """
    if (end := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        return max(0.0, int(end) - time.time())
    if (whole := environment.get("PBS_WALLTIME", "")).isdigit():
        return float(whole) - passed
    return None
