"""The step of a small model with ``--bind none`` and ``auto``, in turn, where a launcher left two ranks on the same cores."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.campaigns.speed.spread import ratios, spread
from tests.launching import RUNNER, mpirun, ok
from tests.pages import table

ROUNDS = 7
STEP = str(Path(__file__).with_name("step.py"))
IN_A_JOB = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": str(os.cpu_count())}
LEFT_ON = {"both cores (`--bind-to none`, in a job)": (), "one core (`taskset -c 0`)": ("taskset", "-c", "0")}


def section() -> list[str]:
    """Measure, and return the lines of the page's section."""
    rows = []
    for where, wrapper in LEFT_ON.items():
        none, auto = zip(*((_step("none", wrapper), _step("auto", wrapper)) for _ in range(ROUNDS)), strict=True)
        medians = [f"{statistics.median(times):.1f}" for times in (none, auto)]
        rows.append([where, *medians, spread(ratios(none, auto), 2)])
    title = "`mpirun -np 2 --bind-to none python -m runner --bind VALUE --backend mpi4py tests/campaigns/site/step.py`"
    titles = ["two ranks were left on", "`none` (ms)", "`auto` (ms)", "none ÷ auto, median and range of 7 rounds"]
    return [f"Median step of a network of three layers by DDP. {title}", "", *table(titles, rows)]


def _step(bind: str, wrapper: Sequence[str]) -> float:
    """The median step in ms."""
    command = [*wrapper, *RUNNER, f"--bind={bind}", "--backend", "mpi4py", STEP]
    done = ok(mpirun(2, "--bind-to", "none", *command, **IN_A_JOB))
    found = re.search(r"^step (\S+) ms$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return float(found[1])
