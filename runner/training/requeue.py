"""``--requeue``: Slurm puts the job back into the queue."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from runner.base.errors import RunnerError, UsageError


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
