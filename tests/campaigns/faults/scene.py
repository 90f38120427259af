"""A job to which something happens, and what is done to it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from subprocess import CompletedProcess

import psutil

from runner.training.checkpoint.checkpoint_folder import name_of, steps_in
from tests.cluster.job_scripts import submit_by
from tests.cluster.launchers import LAUNCHERS, Launch, slurm_shape
from tests.cluster.virtual import Cluster
from tests.launching import ROOT, RUNNER, folder_of
from tests.processes import is_worker, processes
from tests.results import metrics

WEIGHTS = "model-00001-of-00001.safetensors"
HANG = 3  # seconds, of --hang-timeout
MEMORY = Path("/sys/fs/cgroup/memory")  # of control groups, version 1

TORCHRUN = ("torchrun", "srun-torchrun")
SRUN = ("srun", "srun-pmi2", "srun-torchrun")  # SIGTERM ends its step at once, and Ctrl-C has to come twice
REPLACE_CODES = ("intelmpi", "sbatch-intelmpi", *TORCHRUN)  # by one of their own, at least at times
PORT = 29511
_SHELLS = ("/bin/bash", "/bin/sh", "/usr/bin/bash", "bash", "sh")


def srun_kept(vc: Cluster, slots: Sequence[int], program: Sequence[str]) -> CompletedProcess[str]:
    """srun that leaves the other ranks alone when one fails."""
    return vc.run("node1", ["srun", "--kill-on-bad-exit=0", *slurm_shape(vc, slots), *program])


ALL: dict[str, Launch] = LAUNCHERS | {"srun-kept": srun_kept}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Where a job runs to which something happens.

    Attributes:
        folder: the job's; the command lines of all its processes name it.
    """

    vc: Cluster
    launcher: str
    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "run"

    @property
    def stamp(self) -> Path:
        """The file that the program makes at the step of the fault; it has the time."""
        return self.folder / "stamp"

    def job(self, *options: str, slots: Sequence[int] = (1, 1), shell: str = "") -> CompletedProcess[str]:
        """Train tests/programs/failures/faulty.py to its end.

        Args:
            shell: bash, which each rank runs before it starts; it may change the arguments, "$@", and know $FOLDER's name.
        """
        program = [*RUNNER, "--hang-timeout", str(HANG), "faulty", "--stamp", str(self.stamp)]
        program += ["--checkpoint-dir", str(self.checkpoints), "--save-every", "end", "--batch-size", "8", *options]
        if shell:
            program = ["bash", "-c", f'FOLDER={self.folder.name}; {shell}\nexec "$@"', "bash", *program]
        hosts = replace(self.vc, environment=self.vc.environment | {"PYTHONPATH": f"{ROOT}:{folder_of('faulty')}"})
        return ALL[self.launcher](hosts, slots, program)

    def processes(self) -> list[psutil.Process]:
        """Those whose command line names the folder."""
        return processes(self.folder)

    def wait_for_workers(self, within: float) -> None:
        """Until no rank is left, or so many seconds."""
        deadline = time.monotonic() + within
        while any(is_worker(one) for one in self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)

    def launcher_process(self) -> psutil.Process:
        """The first that was started. Intel's mpirun is a shell script, which starts mpiexec.hydra (docs/train/preemption.md)."""
        started = [process for process in self.processes() if process.info["cmdline"][0] not in _SHELLS]
        return min(started, key=lambda process: (process.create_time(), process.pid))


def signal(*numbers: Signals) -> Callable[[Scene], None]:
    """Signals to the launcher, half a second apart."""

    def send(scene: Scene) -> None:
        process = scene.launcher_process()
        for index, number in enumerate(numbers):
            time.sleep(0.5 * min(index, 1))
            if process.is_running():
                process.send_signal(number)

    return send


def save_twice(scene: Scene, slots: Sequence[int] = (1, 1)) -> None:
    """Train ten steps, with a checkpoint after five and one at the end."""
    done = scene.job("--max-steps", "10", "--save-every", "5steps", "--at", "0", slots=slots)
    assert done.returncode == 0, done.stderr


def save_by_four(scene: Scene) -> None:
    save_twice(scene, (2, 2))


def small_disk(scene: Scene) -> None:
    """The folder of checkpoints is on a small file system that the hosts share."""
    for entry in scene.vc.small.iterdir():
        shutil.rmtree(entry)
    (scene.vc.small / scene.folder.name).mkdir()
    scene.checkpoints.symlink_to(scene.vc.small / scene.folder.name)


def damage(how: Callable[[Path], object], name: str) -> Callable[[Scene], None]:
    """Two checkpoints, and the newest one's file of this name damaged."""

    def make(scene: Scene) -> None:
        save_twice(scene)
        how(scene.checkpoints / name_of(10) / name)

    return make


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def goes_on(scene: Scene) -> str:
    """The job starts again from its newest checkpoint, and each that is there is intact."""
    newest = max((step for step, _ in steps_in(scene.checkpoints)), default=0)
    done = scene.job("--resume", "auto", "--max-steps", str(newest + 10), "--at", "0")
    saved = re.findall(r"continuing from \S+/(step-\d+)", done.stdout)
    if done.returncode or not saved:
        return f"it does not continue: {done.stdout[-200:]} {done.stderr[-500:]}"
    return verified(scene)


def verified(scene: Scene) -> str:
    done = scene.vc.run("node1", [*RUNNER, "checkpoint", "verify", str(scene.checkpoints)])
    return "" if done.returncode == 0 else f"a checkpoint is damaged: {done.stdout}{done.stderr}"


def two_at_once(scene: Scene) -> CompletedProcess[str]:
    """The same job twice at the same time, on the same hosts; the result of one that failed, if one did."""
    scenes = [replace(scene, folder=scene.folder / name) for name in ("a", "b")]
    for one in scenes:
        one.folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(one.job, "--max-steps", "10") for one in scenes]
        return max((job.result() for job in jobs), key=lambda done: abs(done.returncode))  # a signal's is negative


def cut_off(scene: Scene) -> None:
    """The last host's only link goes down. It is up again when the ranks are gone: launchers wait for their daemons."""
    scene.vc.network("-n", "node2", "link", "set", "eth0", "down")
    try:
        scene.wait_for_workers(within=90)
    finally:
        scene.vc.network("-n", "node2", "link", "set", "eth0", "up")


def block_port(scene: Scene) -> None:
    """What rank 0's host answers on a port is dropped, as by a firewall."""
    scene.vc.network("-n", "node1", "rule", "add", "blackhole", "ipproto", "tcp", "sport", str(PORT))


def open_port(scene: Scene) -> None:
    scene.vc.network("-n", "node1", "rule", "del", "blackhole", "ipproto", "tcp", "sport", str(PORT))


def requeued(scene: Scene, *, by_slurm: bool = False) -> CompletedProcess[str]:
    """A job that nears its time limit goes back into the queue, and then to its end.

    Args:
        by_slurm: the limit is Slurm's, of which the shortest is a minute; otherwise --time-limit.
    """
    request = ["--requeue", "--ntasks-per-node=1", "--cpus-per-task=1"]
    target = ["faulty", "--resume", "auto", "--requeue", "--checkpoint-dir", str(scene.checkpoints)]
    target += ["--save-every", "end", "--log-every", "1"]
    if by_slurm:
        last = 140
        request += ["--time=1"]
        target += ["--milliseconds", "500"]
    else:
        last = 60
        target += ["--time-limit", "0:40", "--fault", "pause", "--at", "31", "--once", f"{scene.folder}/once"]
    target += ["--max-steps", str(last)]
    text = submit_by(scene.vc, scene.launcher, request, *target, PYTHONPATH=f"{ROOT}:{folder_of('faulty')}")
    saved = re.findall(
        r"the time limit is near: saved \S+/(step-\d+), back in Slurm's queue; continue with --resume", text
    )
    assert saved, text
    assert saved == re.findall(r"continuing from \S+/(step-\d+)", text), text
    assert [line["step"] for line in metrics(scene.checkpoints)] == list(range(1, last + 1))
    # (Slurm's SIGTERM, which follows the requeueing, may be told before.)
    return CompletedProcess([], 0, "", next(line for line in text.splitlines() if "back in Slurm's queue" in line))


def requeued_by_slurm(scene: Scene) -> CompletedProcess[str]:
    return requeued(scene, by_slurm=True)


# A control group with 2 GiB. ("ip netns exec" mounts a /sys without the machine's control groups.)
LITTLE_MEMORY = f"""
    if [ ! -d {MEMORY} ]; then
        mount -t tmpfs none {MEMORY.parent} && mkdir {MEMORY} && mount -t cgroup -o memory none {MEMORY}
    fi
    mkdir -p {MEMORY}/$FOLDER && echo 2G > {MEMORY}/$FOLDER/memory.limit_in_bytes && echo $$ > {MEMORY}/$FOLDER/cgroup.procs
"""


def clear_group(scene: Scene) -> None:
    """Remove the control group, once the kernel has noticed that its processes are gone."""
    group, deadline = MEMORY / scene.folder.name, time.monotonic() + 10
    while group.exists():
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
