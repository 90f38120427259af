"""A long training of small steps on two virtual hosts, to which something happens every half minute.

    python -m tests.cluster.soak [--faults 120] [--every 30] [--slots 2] [--seed 0]      (as root)

Ranks start again in place; what that cannot mend, supervise does. At the end the training is asked to save. Exit code 1 if a complete
checkpoint was not gone on from, a step's metrics are missing or twice, the final weights and optimizer are not bit for bit those of
an uninterrupted run, or a process is left. Prints, per fault, the seconds until there is a newer checkpoint.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGUSR1

import psutil

from runner.training.checkpoint_folder import name_of
from tests.cluster.faults import left_of
from tests.cluster.launchers import openmpi5_command
from tests.cluster.virtual import Cluster, cluster
from tests.kills import RESUMED, VICTIMS, lost, newest, ranks_of
from tests.launching import ROOT, RUNNER, SCRIPTS, clean_environment
from tests.results import metrics

PATIENCE = 90.0  # seconds in which a job has to go on
_WEIGHTS = "model-00001-of-00001.safetensors"


@dataclass
class Soak:
    """A supervised training in a folder."""

    vc: Cluster
    slots: int  # ranks per host
    folder: Path
    draw: random.Random

    def __post_init__(self) -> None:
        self.hosts = replace(self.vc, environment=self.vc.environment | {"PYTHONPATH": f"{ROOT}:{SCRIPTS}"})
        self.log, self.port = self.folder / "log", self.vc.free_port("node1")
        options = ["--max-restarts", "100000", "--log-dir", str(self.folder / "attempts"), "--"]
        endless = ["--max-steps", str(10**9), "--milliseconds", "20"]
        program = [*RUNNER, "supervise", *options, *self.job("faulted", endless, "--restart-in-place", "100000")]
        with open(self.log, "w") as output:
            self.process = subprocess.Popen(
                self.hosts.command("node1", program),
                env=clean_environment() | self.hosts.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.reached(0)

    def job(self, name: str, length: Sequence[str], *options: str) -> list[str]:
        training = ["faulty", "--checkpoint-dir", str(self.folder / name), "--resume", "auto", "--backend", "gloo"]
        training += ["--batch-size", "8", "--log-every", "10", "--save-every", "0", "--save-every-steps", "10", *length]
        # Open MPI 5 does not list the hosts, and MPI is no way to meet for ranks that start again.
        meeting = ["env", f"MASTER_ADDR={self.vc.address('node1')}", f"MASTER_PORT={self.port}"]
        return openmpi5_command(self.vc, [self.slots] * len(self.vc.hosts), [*meeting, *RUNNER, *options, *training])

    def reached(self, step: int) -> int:
        """The step of the first checkpoint after this one."""
        end = time.monotonic() + PATIENCE
        while (last := newest(self.folder / "faulted")) <= step:
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(
                    f"no checkpoint after step {step}:\n{self.log.read_text()[-3000:]}\n{self.below()}"
                )
            time.sleep(0.05)
        return last

    def below(self) -> str:
        """The processes of the job, and where in the kernel each waits."""
        lines = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                where = Path(f"/proc/{one.pid}/wchan").read_text()
                lines.append(
                    f"{one.pid} below {one.ppid()}: {one.status()} in {where}: {' '.join(one.cmdline())[-80:]}"
                )
        return "\n".join(lines)

    def one_of(self, kind: str) -> psutil.Process:
        """One of the processes of this kind, as ``tests.kills`` knows them, when there is one."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with suppress(psutil.NoSuchProcess):
                ranks = ranks_of(psutil.Process(self.process.pid), self.folder / "attempts")
                if found := VICTIMS[kind](ranks):
                    return self.draw.choice(found)
            time.sleep(0.05)
        raise AssertionError(f"there are no {kind}:\n{self.log.read_text()[-3000:]}")

    def kill_a_rank(self) -> None:
        self.one_of("ranks").send_signal(SIGKILL)

    def stop_a_rank(self) -> None:
        self.one_of("ranks").send_signal(SIGSTOP)

    def kill_a_spare_process(self) -> None:
        self.one_of("spare processes").send_signal(SIGKILL)

    def kill_a_guard(self) -> None:
        self.one_of("guards").send_signal(SIGKILL)

    def kill_mpirun(self) -> None:
        below = psutil.Process(self.process.pid).children(recursive=True)
        next(one for one in below if one.name() in ("mpirun", "prterun")).send_signal(SIGKILL)

    def cut_a_host_off(self) -> None:
        """For less time than a guard waits for signs of life: the job is to go on by itself."""
        self.vc.network("-n", "node2", "link", "set", "eth0", "down")
        time.sleep(5)
        self.vc.network("-n", "node2", "link", "set", "eth0", "up")

    def finish(self) -> int:
        """Ask the training to save and to end. Returns its last step."""
        self.process.send_signal(SIGUSR1)
        code = self.process.wait(PATIENCE)
        assert code == 75, f"exit code {code}:\n{self.log.read_text()[-3000:]}"
        return newest(self.folder / "faulted")


FAULTS: dict[str, Callable[[Soak], None]] = {
    "a rank is killed": Soak.kill_a_rank,
    "a rank is stopped": Soak.stop_a_rank,
    "a spare process is killed": Soak.kill_a_spare_process,
    "a guard is killed": Soak.kill_a_guard,
    "mpirun is killed": Soak.kill_mpirun,
    "a host is cut off for 5 s": Soak.cut_a_host_off,
}


def soak(vc: Cluster, folder: Path, *, faults: int, every: float, slots: int, seed: int) -> list[str]:
    """Returns what is wrong at the end; prints what happens. ``every``: seconds of training between two faults."""
    started = Soak(vc, slots, folder, random.Random(seed))
    try:
        return _soak(started, faults, every)
    finally:
        if started.process.poll() is None:
            started.process.terminate()
            started.process.wait(PATIENCE)


def _soak(job: Soak, faults: int, every: float) -> list[str]:
    before: list[tuple[int, int]] = []  # each fault: the newest checkpoint, and how often the training had gone on
    took: dict[str, list[float]] = defaultdict(list)
    names: list[str] = []
    for _ in range(faults):
        time.sleep(job.draw.uniform(0.5, 1.5) * every)
        names = names or job.draw.sample([*FAULTS], len(FAULTS))
        name, step = names.pop(), newest(job.folder / "faulted")
        before.append((step, len(RESUMED.findall(job.log.read_text()))))
        began = time.monotonic()
        FAULTS[name](job)
        job.reached(job.reached(step))  # the first may have been written meanwhile
        took[name].append(time.monotonic() - began)
        print(f"step {step}: {name}; going on after {took[name][-1]:.1f} s", flush=True)
    last = job.finish()
    print(f"{len(before)} faults, {last} steps")
    for name, times in took.items():
        print(f"  {name}: {len(times)} times, {statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})")
    problems = [
        f"step {step} was saved, and not gone on from"
        for step in lost(before, [int(step) for step in RESUMED.findall(job.log.read_text())])
    ]
    if [line["step"] for line in metrics(job.folder / "faulted")] != list(range(1, last + 1)):
        problems.append("the metrics are not those of each step once")
    print(f"checking against {last} steps without a fault", flush=True)
    whole = job.hosts.run(
        "node1", job.job("whole", ["--max-steps", str(last), "--milliseconds", "0"]), timeout=300 + 2 * every * faults
    )
    assert whole.returncode == 0, whole.stderr
    weights = [(job.folder / name / name_of(last) / _WEIGHTS).read_bytes() for name in ("faulted", "whole")]
    if weights[0] != weights[1]:
        problems.append("the final weights are not those of an uninterrupted run")
    return problems + [f"left: {one}" for one in left_of(job.folder)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=120)
    parser.add_argument(
        "--every", type=float, default=30, help="seconds of training before each, half as many to half more"
    )
    parser.add_argument("--slots", type=int, default=2, help="ranks per host")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    with cluster(2) as vc:
        problems = soak(vc, folder, faults=given.faults, every=given.every, slots=given.slots, seed=given.seed)
    print("\n".join(problems) or "nothing lost, nothing left")
    if problems:
        sys.exit(f"the log is in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
