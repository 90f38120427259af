"""What a training asks of Slurm: how much time its job has left, and to put it back into the queue."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Mapping

from runner.base.errors import RunnerError, UsageError
from runner.base.quantities import duration

_ASKING = 10.0  # seconds for the controller's answer


def time_left(environment: Mapping[str, str]) -> float | None:
    """Seconds until Slurm ends this job; None if it has no time limit, or is no job of Slurm's. Called on one rank.

    Newer versions say it in a variable (``runner.launch.time_limit``), and 22.05 does not.
    """
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


def check_requeue(environment: Mapping[str, str]) -> None:
    """See that ``--requeue`` can be obeyed.

    Raises:
        UsageError: this is no Slurm job.
    """
    if "SLURM_JOB_ID" not in environment:
        raise UsageError(
            "--requeue: this is no Slurm job",
            fix="leave it out; with another scheduler exit code 75 says to run it again",
        )


def requeue(where: str) -> None:
    """Put this job back into the queue. Called on one rank.

    Args:
        where: what was done before, for a message.

    Raises:
        RunnerError: Slurm does not.
    """
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=60, check=False
        )
        problem = "" if done.returncode == 0 else done.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise RunnerError(f"--requeue: {where}, but {' '.join(command)} failed: {problem}", fix="submit the job again")
