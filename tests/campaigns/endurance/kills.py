"""Kill ranks at random moments of training and saving, and see that nothing is lost.

    python -m tests.campaigns.endurance.kills [--kills 100] [--ranks 4] [--seed 0] [--supervise] [--training "--strategy fsdp --save-async"]

The job starts again in place, or with --supervise by its launcher, from the newest intact checkpoint. After each kill it has to continue
from the newest checkpoint that was complete before the kill, or a later one; at the end its weights are those of an uninterrupted
run, bit for bit, its metrics those of each step once, and no process is left. The kills are those of ranks' own processes; between
them some importers are killed, with --supervise some agents. Exit code 1 if something was lost.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import psutil

from tests.campaigns.endurance.job import Job
from tests.launching import mpirun_path

_OTHERS = 0.15  # the share of attempts at a process that is no rank's own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of ranks")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--supervise", action="store_true")
    parser.add_argument(
        "--training", type=str.split, default=[], metavar="OPTIONS", help="more options of the training"
    )
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    job = Job(
        folder=folder,
        launch=lambda program: [mpirun_path(), "-np", str(given.ranks), *program],
        in_place=not given.supervise,
        supervised=given.supervise,
        every=3,
        options=given.training,
    )
    with closing(job):
        killed = kill(job, given.kills, "agents" if given.supervise else "importers", random.Random(given.seed))
        job.go_on(job.newest())
        last = job.finish()
    counts = ", ".join(f"{number} {kind}" for kind, number in killed.items())
    print(f"killed: {counts}; {len(job.resumed())} times gone on, {last} steps")
    if problems := job.problems(last):
        print(*problems, f"the job's files are kept in {folder}", sep="\n")
        sys.exit(1)
    print("nothing lost, nothing left")
    shutil.rmtree(folder)


def kill(job: Job, kills: int, other: str, draw: random.Random) -> Counter[str]:
    """Kill so many ranks, and processes of another kind between them. Returns how many of each."""
    killed = Counter({"ranks": 0, other: 0})
    while killed["ranks"] < kills:
        if not job.before or draw.random() < 0.8:  # else it may be killed while it starts
            job.reach(job.newest())
        time.sleep(draw.uniform(0.0, 0.5))
        kind = other if draw.random() < _OTHERS else "ranks"
        if victims := job.victims(kind):
            job.note()
            with suppress(psutil.NoSuchProcess):
                draw.choice(victims).kill()
                killed[kind] += 1
    return killed


if __name__ == "__main__":
    main()
