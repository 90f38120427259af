"""Run tests in as many jobs of MPI as it takes: a job ends with the first test that fails, and the next continues behind it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from runner.base.errors import RunnerError
from tests.campaigns.conformance.mpis import MPI
from tests.campaigns.conformance.outcome import FAILED, Outcome, failure, merged, read, sections
from tests.campaigns.conformance.ranks import LEAVING, STARTING
from tests.launching import ROOT

GRACE = 5.0  # seconds that the other ranks get after one has failed
DUMPING = 2.0  # seconds that a test's ranks get after its limit, to write where they are
ENDING = 5.0  # seconds that a launcher gets to end its ranks
POLL = 0.05  # seconds

IN_GLOOS_PLACE = ("--backend", "mpi4py")
END = "the end of the job"  # stands where a test's name stands, if a job that passed all does not end in order


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run, and how."""

    mpi: MPI
    options: tuple[str, ...]  # of the runner
    suite: str  # a module with names(), limit() and run()
    ranks: int
    logs: Path  # the folder for failures and what the jobs print


def run(plan: Plan, tests: dict[str, float]) -> Iterator[tuple[str, Outcome]]:
    """Yield each test's outcome as soon as it is known.

    Args:
        tests: name → limit in seconds.

    Raises:
        RunnerError: a job came to no test at all.
    """
    plan.logs.mkdir(parents=True, exist_ok=True)
    for path in [*plan.logs.glob("job-*.txt"), *(_log(plan, name) for name in (*tests, END))]:
        path.unlink(missing_ok=True)
    left, number = dict(tests), 0
    while left:
        number += 1
        before = len(left)
        for name, outcome in _job(plan, dict(left), plan.logs / f"job-{number}.txt"):
            left.pop(name, None)
            if outcome.status == FAILED:
                _log(plan, name).write_text(f"{name}: {outcome.reason}\n\n{outcome.text}")
            yield name, outcome
        if len(left) == before:
            tail = _tail(plan.logs / f"job-{number}.txt")
            raise RunnerError(f"{plan.mpi.title}: the job came to no test within {STARTING} s, or ended:\n{tail}")


def _log(plan: Plan, name: str) -> Path:
    return plan.logs / f"{name.replace(' ', '-')}.txt"


def _job(plan: Plan, tests: dict[str, float], log: Path) -> Iterator[tuple[str, Outcome]]:
    """One mpirun: up to the first failure, or to where it ended by itself."""
    program = [sys.executable, "-m", "runner", *plan.options, "-m", "tests.campaigns.conformance.ranks"]
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps({"suite": plan.suite, "tests": tests}))
        for test in tests:
            for below in ("barrier", "test_dir"):  # where torch's tests write files
                (folder / test / below).mkdir(parents=True)
        with log.open("w") as output:
            process = subprocess.Popen(
                plan.mpi.command(plan.ranks, [*program, str(folder)]),
                cwd=ROOT,
                env=plan.mpi.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a launcher and all that it starts end together
            )
        try:
            for test, limit in tests.items():
                outcome = _wait(process, folder / test, plan.ranks, limit, log)
                if outcome is None:
                    return
                yield test, outcome
                if outcome.status == FAILED:
                    return
            problem = _how_it_ends(process)
            if problem:
                yield END, failure(problem, 0.0, [("the job printed", _tail(log))])
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], folder: Path, ranks: int, limit: float, log: Path) -> Outcome | None:
    """Wait for a test's outcome; None where the test was not begun."""
    start, began, until, begun = time.monotonic(), None, math.inf, 0
    while True:
        code, now = process.poll(), time.monotonic()  # before the files are read: what it has written is there
        found = read(folder)
        if len(found) == ranks:
            return merged(found)
        there = len(list(folder.glob("stacks-*.txt")))
        if there > begun:  # each rank has its own limit, from its own beginning
            begun, began, until = there, began or now, now + limit + DUMPING
        if any(outcome.status == FAILED for outcome in found.values()):
            until = min(until, now + GRACE)
        if began is None and (code is not None or now - start > STARTING):
            return None
        if began is not None and (code is not None or now > until):
            reason = f"no end within {limit:g} s" if code is None else f"the job ended, exit code {code}"
            return _unfinished(reason, now - began, folder, ranks, log)
        time.sleep(POLL)


def _unfinished(reason: str, seconds: float, folder: Path, ranks: int, log: Path) -> Outcome:
    """The failure of a test to which not all ranks have come to an end: the first failed rank's, or this reason."""
    found = read(folder)
    missing = ", ".join(str(rank) for rank in range(ranks) if rank not in found)
    stacks = [(path.stem, path.read_text()) for path in sorted(folder.glob("stacks-*.txt"))]
    more = [*stacks, (f"no outcome from rank {missing}; the job printed", _tail(log))]
    if all(outcome.status != FAILED for outcome in found.values()):
        return failure(reason, seconds, more)
    told = merged(found)
    return replace(told, text=f"{told.text}\n{sections(more)}")


def _how_it_ends(process: subprocess.Popen[bytes]) -> str:
    """What is wrong with the end of a job that has passed all tests, or an empty string."""
    try:
        code = process.wait(LEAVING)
    except subprocess.TimeoutExpired:
        return f"no end within {LEAVING} s after the last test"
    return f"exit code {code} after the last test" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and all that it has started; Intel MPI's mpirun is a shell script that ends alone."""
    started = []
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING)
            break
    _, alive = psutil.wait_procs(started, ENDING)
    for child in alive:
        with contextlib.suppress(psutil.Error):
            child.kill()  # psutil makes sure that it is the same process still


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
