"""A busy loop, as a program: ``busy_loop.py POLICY CORES``; it computes until the pipe on its standard input closes.

It prints one word when it has started. POLICY is ``other`` (like any process) or ``idle`` (runs only on a core that is
otherwise idle). CORES are the cores it may run on, such as ``0,1``.
"""

import fcntl
import os
import select
import signal
import sys

_POLICIES = {"other": os.SCHED_OTHER, "idle": os.SCHED_IDLE}


def main(policy: str, cores: str) -> None:
    # The kernel ends the loop by a signal when the pipe closes; polling the pipe would interrupt the computation.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # the pipe closed before the signal was set up
        return
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.sched_setscheduler(0, _POLICIES[policy], os.sched_param(0))
    print("busy", flush=True)
    while True:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
