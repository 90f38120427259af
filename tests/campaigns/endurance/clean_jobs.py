"""Start short jobs in which nothing goes wrong, and see that none fails, warns or leaves anything.

    python -m tests.campaigns.endurance.clean_jobs [--jobs 200] [--ranks 2]

One in four trains for three steps by gloo, with --log-dir, the others run a script that does nothing. Each is to end with code 0, print
nothing on stderr, and leave no process and no file in the folder of temporary files (but torch's cache); after the last one there is
nothing new in /dev/shm, if no other job runs on the machine. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.launching import RUNNER, folder_of, mpirun
from tests.processes import left_of

SHARED_MEMORY = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    bad, before = 0, set(SHARED_MEMORY.iterdir())
    for number in range(1, given.jobs + 1):
        problems = run_one(given.ranks, trains=number % 4 == 0)
        for problem in problems:
            print(f"job {number}: {problem}", flush=True)
        bad += bool(problems)
        print(f"{number} of {given.jobs}", end="\r", file=sys.stderr, flush=True)
    left = set(SHARED_MEMORY.iterdir()) - before
    print(f"{given.jobs} jobs, {bad} not clean; new in {SHARED_MEMORY}: {', '.join(map(str, left)) or 'nothing'}")
    sys.exit(bad > 0 or bool(left))


def run_one(ranks: int, *, trains: bool) -> list[str]:
    """Run a job. Returns what is not as it should be."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as temporary:
        (script := Path(name, "nothing.py")).touch()
        training = ["faulty", "--max-steps", "3", "--backend", "gloo", "--checkpoint-dir", str(Path(name, "run"))]
        command = ["--log-dir", str(Path(name, "log")), *training] if trains else [str(script)]
        done = mpirun(ranks, *RUNNER, *command, cwd=folder_of("faulty"), TMPDIR=temporary)
        problems = []
        if done.returncode:
            problems.append(f"exit code {done.returncode}")
        if done.stderr:
            problems.append(f"stderr: {done.stderr}")
        if trains and list(Path(name, "log").glob("failure.json")):
            problems.append("a report of a failure")
        problems += [f"left a process: {command}" for command in left_of(Path(name), 0)]
        own_files = [path for path in Path(temporary).iterdir() if not path.name.startswith("torchinductor_")]
        problems += [f"left {path}" for path in own_files]
    return problems


if __name__ == "__main__":
    main()
