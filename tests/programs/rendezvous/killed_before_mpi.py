"""The runner, in which a rank is killed, or stopped, before it looks for the others: ``killed_before_mpi.py SIGNAL [ARGUMENT …]``."""

import os
import signal
import sys
from typing import Any

from runner import cli
from runner.starting import launch

number = signal.Signals[sys.argv.pop(1)]
refuse_idle_options = launch.refuse_idle_options  # a worker calls it, before it looks for the others


def find_and_kill(*arguments: Any, **options: Any) -> Any:
    ranks = (os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"))
    if "1" in ranks:
        os.kill(os.getpid(), number)
    return refuse_idle_options(*arguments, **options)


launch.refuse_idle_options = find_and_kill
cli.main()
