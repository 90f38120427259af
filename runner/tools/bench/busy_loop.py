"""A busy loop, as a program: ``busy_loop.py POLICY CORES``; it computes until the pipe on its standard input closes.

It says one word when it has begun. POLICY is ``other`` (as any process) or ``idle`` (gets a core while nobody else wants
it), CORES the cores it may run on, as ``0,1``.
"""

import fcntl
import os
import select
import signal
import sys

_POLICIES = {"other": os.SCHED_OTHER, "idle": os.SCHED_IDLE}


def main(policy: str, cores: str) -> None:
    # The kernel ends the loop with a signal when the pipe closes: to look for itself it would have to stop computing.
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # closed before the kernel was asked
        return
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.sched_setscheduler(0, _POLICIES[policy], os.sched_param(0))
    print("busy", flush=True)
    while True:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
