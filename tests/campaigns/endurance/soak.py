"""A long training of small steps on two virtual hosts, to which something happens every half minute.

    python -m tests.campaigns.endurance.soak [--faults 120] [--every 30] [--slots 2] [--seed 0]      (as root)

Ranks start again in place; what that cannot fix, supervise does. At the end the training is asked to save. Exit code 1 if a complete
checkpoint was not gone on from, a step's metrics are missing or twice, the final weights and optimizer are not bit for bit those of
an uninterrupted run, or a process is left. Prints, per fault, the seconds until there is a newer checkpoint.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from signal import SIGKILL, SIGSTOP

import psutil

from tests.campaigns.endurance.job import Job
from tests.cluster.launchers import openmpi5_command
from tests.cluster.virtual import Cluster, cluster

# A signal, and the processes of which one gets it.
SIGNALS = {
    "a rank is killed": (SIGKILL, "ranks"),
    "a rank is stopped": (SIGSTOP, "ranks"),
    "an importer is killed": (SIGKILL, "importers"),
    "an agent is killed": (SIGKILL, "agents"),
    "a proxy is killed": (SIGKILL, "proxies"),
}
MPIRUN, LINK = "mpirun is killed", "a host is cut off for 5 s"
FAULTS = (*SIGNALS, MPIRUN, LINK)


def strike(job: Job, vc: Cluster, fault: str, draw: random.Random) -> None:
    """Let one of the faults happen."""
    if fault == MPIRUN:
        below = psutil.Process(job.process.pid).children(recursive=True)
        next(one for one in below if one.name() in ("mpirun", "prterun")).send_signal(SIGKILL)
    elif fault == LINK:  # for less time than an agent waits for signs of life: the job is to continue by itself
        vc.network("-n", "node2", "link", "set", "eth0", "down")
        time.sleep(5)
        vc.network("-n", "node2", "link", "set", "eth0", "up")
    else:
        number, kind = SIGNALS[fault]
        draw.choice(job.some(kind)).send_signal(number)


def soak(vc: Cluster, folder: Path, *, faults: int, every: float, slots: int, seed: int) -> list[str]:
    """Returns what is wrong at the end; prints what happens. ``every``: seconds of training between two faults."""
    # Open MPI 5 does not list the hosts, and MPI is no way to meet for ranks that start again.
    meeting = ["env", f"MASTER_ADDR={vc.address('node1')}", f"MASTER_PORT={vc.free_port('node1')}"]
    job = Job(
        folder=folder,
        launch=lambda program: openmpi5_command(vc, [slots] * len(vc.hosts), [*meeting, *program]),
        on_host=lambda command: vc.command("node1", command),
        environment=vc.environment,
        in_place=True,
        supervised=True,
        every=10,
    )
    with closing(job):
        took = _hurt(job, vc, faults, every, random.Random(seed))
        last = job.finish()
    print(f"{faults} faults, {last} steps")
    for name, times in took.items():
        print(f"  {name}: {len(times)} times, {statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})")
    return job.problems(last)


def _hurt(job: Job, vc: Cluster, faults: int, every: float, draw: random.Random) -> dict[str, list[float]]:
    """Let so many faults happen. Returns, of each, the seconds until there was a newer checkpoint."""
    took: dict[str, list[float]] = defaultdict(list)
    names: list[str] = []
    job.reach(0)
    for _ in range(faults):
        time.sleep(draw.uniform(0.5, 1.5) * every)
        names = names or draw.sample(FAULTS, len(FAULTS))
        name, step, began = names.pop(), job.note(), time.monotonic()
        strike(job, vc, name, draw)
        job.go_on(step)
        took[name].append(time.monotonic() - began)
        print(f"step {step}: {name}; continuing after {took[name][-1]:.1f} s", flush=True)
    return took


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
