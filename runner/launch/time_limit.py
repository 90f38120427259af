"""How long a job has left, as the user or the scheduler says, and when it has to save before that."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Mapping

from runner.base.quantities import duration

_MARGIN = 60.0  # seconds before the time limit that are left for the checkpoint, at most a tenth of the time
_ASKING = 10.0  # seconds for the answer of Slurm's controller


def time_left(
    environment: Mapping[str, str], limit: float | None, passed: float, *, may_ask: bool = False
) -> float | None:
    """Seconds from now until a job is ended; None if its time limit is not known.

    Args:
        limit: seconds that the job may run; None: as the scheduler says, if it does.
        passed: seconds since the job began.
        may_ask: call a program of the scheduler's where no variable says it, which takes seconds: on one rank only.
    """
    if limit is not None:
        return limit - passed
    left = _in_variables(environment, passed)
    return _answer(environment) if left is None and may_ask else left


def margin(left: float, asked: float | None) -> float:
    """Seconds before the time limit at which a job is to save, where it is not known how long that takes.

    Args:
        left: seconds until the time limit, at the start.
        asked: what the user says (``--time-to-save``).
    """
    return min(0.1 * max(0.0, left), _MARGIN) if asked is None else asked


def _in_variables(environment: Mapping[str, str], passed: float) -> float | None:
    """Return the time left by variables: those of Slurm after 22.05 (SLURM_JOB_END_TIME, seconds since 1970).

    TORQUE has PBS_WALLTIME, the seconds of the whole job; it does not say when it began.
    """
    if (end := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        return max(0.0, int(end) - time.time())
    if (whole := environment.get("PBS_WALLTIME", "")).isdigit():
        return float(whole) - passed
    return None


def _answer(environment: Mapping[str, str]) -> float | None:
    """Return the time left by Slurm's answer; None if the job has no time limit, or is no job of Slurm's."""
    if not (job := environment.get("SLURM_JOB_ID")):
        return None
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%L"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=_ASKING, check=False
        )
        return duration(done.stdout.strip())
    except (OSError, subprocess.TimeoutExpired, argparse.ArgumentTypeError):  # "UNLIMITED", or nothing
        return None
