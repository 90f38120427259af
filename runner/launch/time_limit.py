"""When a job has to save: before its time limit, as the user or the scheduler tells it."""

from __future__ import annotations

import time
from collections.abc import Mapping

_MARGIN = 60.0  # seconds before the time limit that are left for the checkpoint, at most a tenth of the time


def time_left(environment: Mapping[str, str], limit: float | None, passed: float) -> float | None:
    """Seconds from now until a job is ended; None if its time limit is not known.

    Args:
        limit: seconds that the job may run; None: as the scheduler says, if it does.
        passed: seconds since the job began.
    """
    return _time_left(environment, passed) if limit is None else limit - passed


def margin(left: float, asked: float | None) -> float:
    """Seconds before the time limit at which a job is to save, where it is not known how long that takes.

    Args:
        left: seconds until the time limit, at the start.
        asked: what the user says (``--time-to-save``).
    """
    return min(0.1 * max(0.0, left), _MARGIN) if asked is None else asked


def _time_left(environment: Mapping[str, str], passed: float) -> float | None:
    """Seconds until the scheduler ends this job, where it says so: Slurm after 22.05 (SLURM_JOB_END_TIME, seconds since 1970).

    TORQUE has PBS_WALLTIME, the seconds of the whole job; it does not say when it began.
    """
    if (end := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        return max(0.0, int(end) - time.time())
    if (whole := environment.get("PBS_WALLTIME", "")).isdigit():
        return float(whole) - passed
    return None
