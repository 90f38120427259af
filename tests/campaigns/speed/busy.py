"""Run a command beside busy loops on each host's cores. Between a launcher and what it starts:

    mpirun -np 2 python -m tests.campaigns.speed.busy [--load N] [--awake] python -m runner bench

--load shares the cores with loops, as other programs would. --awake keeps idle cores from sleeping, so that no message waits
for a core to wake. For Open MPI's mpirun, on Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
from collections.abc import Iterable
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # of sys/prctl.h


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=int, default=0, metavar="N", help="loops per host")
    parser.add_argument("--awake", action="store_true", help="add a loop per core that gives way to everything else")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") == "0":  # the others wait for it
        start_loops(given.load, given.awake)
    os.execvp(given.command[0], given.command)


def start_loops(load: int, awake: bool) -> None:
    """Start busy loops on all cores that the host offers, and wait until they compute.

    The loops end with this process, which may meanwhile become another program by exec.

    Args:
        load: number of loops.
        awake: add one loop per core, of the lowest priority, that keeps the core from idling.
    """
    cores = _offered_cores()
    # Idle-priority loops first: next to the others they would start slowly.
    wanted = [(os.SCHED_IDLE, {core}) for core in cores if awake] + [(os.SCHED_OTHER, cores)] * load
    starts, started = os.pipe()
    parent = os.getpid()
    for policy, own in wanted:
        if os.fork() == 0:
            _compute(policy, own, parent, started)
    os.close(started)
    with open(starts, "rb") as pipe:
        assert len(pipe.read()) == len(wanted), "a busy loop did not start"


def _compute(policy: int, cores: Iterable[int], parent: int, started: int) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setaffinity(0, cores)
        os.sched_setscheduler(0, policy, os.sched_param(0))
        os.write(started, b".")
        os.close(started)
        is_orphan = os.getppid() != parent  # the parent ended before the loop asked for the signal
        while not is_orphan:
            pass
    finally:
        os._exit(1)


def _offered_cores() -> set[int]:
    """The cores that the kernel allows this process, even if the launcher has bound it to some of them."""
    bound = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))  # the kernel drops cores that are not allowed
        return os.sched_getaffinity(0)
    finally:
        os.sched_setaffinity(0, bound)


if __name__ == "__main__":
    main()
