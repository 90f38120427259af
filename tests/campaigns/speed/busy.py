"""Run a command beside busy loops on each host's cores. Between a launcher and what it starts:

    mpirun -np 2 python -m tests.campaigns.speed.busy [--load N] [--awake] python -m runner bench

--load shares the cores with loops, as other programs would. --awake keeps idle cores from sleeping, so that no message waits
for a core to wake. For Open MPI's mpirun, on Linux.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import time
from pathlib import Path

_PROGRAM = str(Path(__file__).with_name("busy_loop.py"))
_START = 60.0  # seconds in which all loops must have started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=int, default=0, metavar="N", help="loops per host")
    parser.add_argument("--awake", action="store_true", help="a loop per core that gives way to everything else")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") == "0":  # the others wait for it where the ranks meet
        start_loops(given.load, given.awake)
    os.execvp(given.command[0], given.command)


def start_loops(load: int, awake: bool) -> None:
    """Start busy loops on all cores that the host offers, and wait until they compute.

    They end with this process, with what it becomes by exec, and with all its forks.

    Args:
        load: number of loops.
        awake: add one loop per core, of the lowest priority, that keeps the core from idling.

    Raises:
        RuntimeError: a loop did not start.
    """
    cores = _offered_cores()
    # Idle-priority loops first: next to the others they would start slowly.
    wanted = [("idle", str(core)) for core in cores if awake] + [("other", ",".join(map(str, cores)))] * load
    loops = [_started(*words) for words in wanted]
    deadline = time.monotonic() + _START
    for loop in loops:
        assert loop.stdout is not None
        if not select.select([loop.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise RuntimeError(f"{len(loops)} busy loops did not start within {_START:.0f} s")
        if not loop.stdout.readline():
            raise RuntimeError("a busy loop did not start")


def _started(policy: str, cores: str) -> subprocess.Popen[bytes]:
    """A loop, which ends when nobody holds the other end of its standard input any more."""
    command = [sys.executable, "-I", "-S", _PROGRAM, policy, cores]
    loop = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert loop.stdin is not None
    os.set_inheritable(loop.stdin.fileno(), True)
    return loop


def _offered_cores() -> list[int]:
    """The cores that the kernel allows this process, even if the launcher has bound it to some of them."""
    bound = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))  # the kernel drops cores that are not allowed
        return sorted(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, bound)


if __name__ == "__main__":
    main()
