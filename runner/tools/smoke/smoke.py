"""``python -m runner smoke``: start three jobs here (explain, doctor, a few steps of mnist), and say which of them fail.

    python -m runner smoke                         2 ranks on this machine
    HOSTS=a:4,b:4 RANKS=8 python -m runner smoke   variables of mpi_scripts/*.sh
    salloc -N2 -n8 python -m runner smoke          in a job of Slurm, PBS or LSF

Start smoke without mpirun or srun: the scripts of mpi_scripts/, which smoke runs, call them. The exit code is 0, or 1 if
a job failed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.quantities import seconds
from runner.hardware.devices import DEVICES
from runner.hardware.resources import resources
from runner.job import Job
from runner.launch.commands import MPI_SCRIPTS, find_mpirun
from runner.launch.launcher_processes import RANK_STARTERS, launcher_process
from runner.options.parsing import Parser
from runner.tools.jobscript.jobscript import request_parser, write
from runner.tools.jobscript.request import SCHEDULERS
from runner.tools.jobscript.template import fill_in

_ALLOCATIONS = {"SLURM_JOB_ID": "slurm", "PBS_NODEFILE": "pbs", "LSB_JOBID": "lsf"}
_TRAINING = ["workloads.mnist", "--data", "digits", "--max-steps", "20", "--checkpoint-dir"]


def smoke(job: Job, argv: list[str]) -> None:
    """Run the jobs one after the other, and show what they print.

    Raises:
        UsageError: no mpirun is found, or this was started by one.
        SystemExit: with 1 if a job has failed.
    """
    parser = Parser(prog="python -m runner smoke", description=__doc__)
    parser.add_argument("--device", choices=DEVICES, default="auto", help="device of the jobs")
    parser.add_argument("--limit", type=seconds, default=120.0, metavar="SECONDS", help="limit per job (default: 120)")
    options = parser.parse_args(argv)
    if launcher_process(names=RANK_STARTERS) is not None:
        raise UsageError("smoke starts mpirun or srun itself", fix="start it without")
    for number in (signal.SIGTERM, signal.SIGHUP):  # time limit or closed terminal: end the job that runs, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    results = []
    with tempfile.TemporaryDirectory(prefix=".smoke-", dir=os.getcwd()) as folder:  # all hosts should share it
        script, settings = _launcher(options.device, Path(folder))
        for name, target, fix in (
            (
                "explain",
                ["explain"],
                "the ranks do not start, or do not meet, and the next jobs would not: see why above",
            ),
            ("doctor", ["doctor"], "do what its report says after each arrow"),
            ("mnist", [*_TRAINING, folder], "see its message above"),
        ):
            command = [str(script), "--device", options.device, *target]
            print(f"\n$ {shlex.join(command)}", flush=True)
            problem = _run(command, settings, options.limit)
            results.append(f"{name:9}{f'fail: {problem}; {fix}' if problem else 'pass'}")
            if problem and name == "explain":
                break
    print("", *results, sep="\n")
    if not all(result.endswith("pass") for result in results):
        sys.exit(1)


def _launcher(device: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Return the script that starts ranks here, and its variables. In a scheduler's job the script is written to a folder."""
    for variable, scheduler in _ALLOCATIONS.items():
        if os.environ.get(variable):
            return _job_script(scheduler, folder), {}
    path, mpi = find_mpirun("smoke")
    script = MPI_SCRIPTS / f"{mpi}.sh"
    if not script.exists():
        raise UsageError(f"{path} is of {mpi}", fix="set MPIRUN to the mpirun of Open MPI, MPICH or Intel MPI")
    gpus = len(resources(os.environ).gpus) if device != "cpu" else 0
    return script, {"MPIRUN": path, "RANKS": os.environ.get("RANKS") or str(min(2, gpus or 2))}


def _job_script(scheduler: str, folder: Path) -> Path:
    """Write the script that starts ranks in a job of a scheduler."""
    words = ["--scheduler", scheduler]
    # Job scripts for LSF set these variables, because LSF does not tell how many ranks a host has.
    words += ["--ranks-per-node", os.environ.get("RANKS_PER_HOST", "4")]
    if gpus := os.environ.get("GPUS_PER_HOST"):
        words += ["--gpus-per-node", gpus]
    request = request_parser().parse_args([*words, "explain"])
    script = folder / f"{scheduler}.sh"
    write(script, fill_in(request, mpi=SCHEDULERS[scheduler].starters[0]))
    return script


def _run(command: list[str], settings: dict[str, str], limit: float) -> str:
    """Run a job, and end it at the limit. Returns what is wrong, "" if nothing is."""
    import psutil

    process = psutil.Popen(command, env=os.environ | {"PYTHON": sys.executable} | settings, stdin=subprocess.DEVNULL)
    try:
        code = process.wait(limit)
        return f"exit code {code}" if code else ""
    except psutil.TimeoutExpired:
        return f"not done after {limit:g} s"
    finally:
        with contextlib.suppress(psutil.Error):
            processes = [process, *process.children(recursive=True)]
            process.terminate()  # the launcher then ends its ranks
            for left in psutil.wait_procs(processes, timeout=5)[1]:
                left.kill()
