"""What each rank of a job runs: the tests of a list, one after the other, until one fails.

    mpirun -np 3 python -m runner --backend mpi4py -m tests.campaigns.conformance.ranks FOLDER

FOLDER holds plan.json, and a folder per test where the ranks leave their outcomes. A job ends with the first test that
fails: what it may have left (a message on its way, a group) must not reach the next.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

from tests.campaigns.conformance.outcome import FAILED, PASSED, SKIPPED, Outcome, read, write

STARTING, LEAVING = 180, 60  # seconds: until the suite is imported, and from the last test to the end of the process
AFTER = 20  # seconds that the program that started the job has, after a test's limit, to end it


def main() -> None:
    # By the system's clock a rank ends also where no thread of it can run, and where nobody is left to end the job.
    signal.alarm(STARTING)
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "plan.json").read_text())
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    suite = importlib.import_module(plan["suite"])
    for name, limit in plan["tests"].items():
        signal.alarm(round(limit) + AFTER)
        with open(folder / name / f"stacks-{rank}.txt", "w") as stacks:
            faulthandler.dump_traceback_later(limit, file=stacks)
            write(folder / name, rank, run(suite, name, rank, folder / name))
            while len(found := read(folder / name)) < size:
                time.sleep(0.02)
            faulthandler.cancel_dump_traceback_later()
        if any(outcome.status == FAILED for outcome in found.values()):
            sys.exit(1)
    signal.alarm(LEAVING)


def run(suite: Any, name: str, rank: int, folder: Path) -> Outcome:
    start = time.monotonic()
    status, reason, text = PASSED, "", ""
    try:
        suite.run(name, rank, folder)
    except unittest.SkipTest as error:
        status, reason = SKIPPED, str(error)
    except BaseException as error:  # SystemExit too: a test that leaves has not passed
        status, text = FAILED, traceback.format_exc()
        reason = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
    return Outcome(status=status, reason=reason, text=text, seconds=time.monotonic() - start, ended=time.time())


if __name__ == "__main__":
    main()
