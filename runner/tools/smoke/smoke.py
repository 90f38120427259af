"""``python -m runner smoke``: start three jobs here (explain, doctor, a few steps of mnist), and say which of them fail.

    python -m runner smoke                         2 ranks on this machine
    HOSTS=a:4,b:4 RANKS=8 python -m runner smoke   as mpi_scripts/ read them
    salloc -N2 -n8 python -m runner smoke          Slurm, PBS, LSF

Do not start it by mpirun: the scripts of mpi_scripts/, which it runs, call mpirun or srun. Exit code 0, or 1 if a job failed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile

from runner.base.errors import UsageError
from runner.base.quantities import seconds
from runner.hardware.devices import DEVICES
from runner.hardware.resources import resources
from runner.job import Job
from runner.launch.commands import MPI_SCRIPTS, find_mpirun
from runner.launch.launcher_processes import RANK_STARTERS, launcher_process
from runner.parsing import Parser

_ALLOCATIONS = {"SLURM_JOB_ID": "slurm_srun.sh", "PBS_NODEFILE": "pbs_mpirun.sh", "LSB_JOBID": "lsf_jsrun.sh"}
_TRAINING = ["workloads.mnist", "--data", "digits", "--max-steps", "20", "--checkpoint-dir"]


def smoke(job: Job, argv: list[str]) -> None:
    """Run the jobs one after the other, and show what they print.

    Raises:
        UsageError: no mpirun is found, or this was started by one.
        SystemExit: with 1 if a job has failed.
    """
    parser = Parser(prog="python -m runner smoke", description=__doc__)
    parser.add_argument("--device", choices=DEVICES, default="auto", help="what the jobs compute on")
    parser.add_argument("--limit", type=seconds, default=120.0, metavar="SECONDS", help="of each job (default: 120)")
    options = parser.parse_args(argv)
    if launcher_process(names=RANK_STARTERS) is not None:
        raise UsageError("smoke starts mpirun or srun itself", fix="start it without")
    script, settings = _launcher(options.device)
    for number in (signal.SIGTERM, signal.SIGHUP):  # time limit or closed terminal: end the job that runs, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    results = []
    with tempfile.TemporaryDirectory(prefix=".smoke-", dir=os.getcwd()) as folder:  # all hosts should share it
        for name, target, fix in (
            (
                "explain",
                ["explain"],
                "the ranks do not start, or do not meet, and the next jobs would not: see why above",
            ),
            ("doctor", ["doctor"], "do what its report says after each arrow"),
            ("mnist", [*_TRAINING, folder], "see its message above"),
        ):
            command = [str(MPI_SCRIPTS / script), "--device", options.device, *target]
            print(f"\n$ {shlex.join(command)}", flush=True)
            problem = _run(command, settings, options.limit)
            results.append(f"{name:9}{f'fail: {problem}; {fix}' if problem else 'pass'}")
            if problem and name == "explain":
                break
    print("", *results, sep="\n")
    if not all(result.endswith("pass") for result in results):
        sys.exit(1)


def _launcher(device: str) -> tuple[str, dict[str, str]]:
    """The script of mpi_scripts/ that starts ranks here, and its variables."""
    for variable, script in _ALLOCATIONS.items():
        if os.environ.get(variable):
            return script, {}
    path, mpi = find_mpirun("smoke")
    if not (MPI_SCRIPTS / f"{mpi}.sh").exists():
        raise UsageError(f"{path} is of {mpi}", fix="set MPIRUN to the mpirun of Open MPI, MPICH or Intel MPI")
    gpus = len(resources(os.environ).gpus) if device != "cpu" else 0
    return f"{mpi}.sh", {"MPIRUN": path, "RANKS": os.environ.get("RANKS") or str(min(2, gpus or 2))}


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
