"""Busy loops on a host's cores during a measurement."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from runner.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.job import Job

_PROGRAM = str(Path(__file__).with_name("busy_loop.py"))
_START = 60.0  # seconds in which all loops must have started


@contextlib.contextmanager
def busy_loops(job: Job, *, load: int, awake: bool) -> Iterator[None]:
    """Run busy loops on each host. Its first rank starts and ends them; they also end if that rank dies.

    Args:
        load: number of loops, which run on all cores that the host offers the job.
        awake: add one loop per core, of the lowest priority, that keeps the core from idling.

    Raises:
        UsageError: the system is not Linux.
        RunnerError: a loop did not start.
    """
    if (load or awake) and sys.platform != "linux":
        with raised_on_all_ranks():
            raise UsageError("--load and --awake need Linux", fix="leave them out")
    loops: list[subprocess.Popen[bytes]] = []
    try:
        if job.local_rank == 0 and (load or awake):
            cores = _offered_cores()
            # Idle-priority loops first: next to the others they would start slowly.
            wanted = [("idle", str(core)) for core in cores if awake] + [("other", ",".join(map(str, cores)))] * load
            _start(wanted, loops)
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.communicate()


def description(*, load: int, awake: bool) -> str:
    """The text for titles, or an empty string."""
    loops = f"with {load} busy loop{'s' * (load > 1)} per host" if load else ""
    return ", ".join(filter(None, [loops, "with awake cores" if awake else ""]))


def _start(wanted: list[tuple[str, str]], loops: list[subprocess.Popen[bytes]]) -> None:
    """Start a loop for each (policy, cores), add them to ``loops``, and wait until they compute."""
    for words in wanted:
        command = [sys.executable, "-I", "-S", _PROGRAM, *words]
        try:
            loops.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        except OSError as error:
            raise RunnerError(
                f"{len(loops)} of {len(wanted)} busy loops started: {error}", fix="ask for fewer"
            ) from None
    deadline = time.monotonic() + _START
    for loop in loops:
        assert loop.stdout is not None
        assert loop.stderr is not None
        if not select.select([loop.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise RunnerError(f"{len(wanted)} busy loops did not start within {_START:.0f} s", fix="ask for fewer")
        if not loop.stdout.readline():
            output = loop.stderr.read().decode(errors="replace").strip().splitlines()
            raise RunnerError(f"a busy loop did not start: {output[-1] if output else 'it was ended'}")


def _offered_cores() -> list[int]:
    """The cores that the kernel allows this process, even if the launcher has bound it to some of them."""
    bound = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))  # the kernel drops cores that are not allowed
        return sorted(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, bound)
