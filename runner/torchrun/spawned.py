"""Run by its path in each process that multiprocessing starts anew: what the program's own process has is set up there, too.

It is not imported by its name, which may be that of a module of the program's.

The caller gives it ``SERVED``: the fields of a ``Served`` for a program's process, None for a workload's.
"""

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

sys.path.insert(0, _ROOT)
from runner.torchrun.own_modules import hide_own_modules  # noqa: E402  # only now can it be found
from runner.torchrun.served_store import Served, join_only  # noqa: E402  # as above

sys.path.remove(_ROOT)
if SERVED is not None:  # type: ignore[name-defined]  # noqa: F821  # runpy has put it there, for the caller
    hide_own_modules()
    join_only(Served(**SERVED))  # type: ignore[name-defined]  # noqa: F821  # as above
