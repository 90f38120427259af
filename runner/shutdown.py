"""The end of a worker: the program's exit handlers, the groups, open files, and out.

The interpreter's own teardown is left out. A gloo thread that asks for the interpreter's lock while it is being
torn down is ended inside a destructor, which aborts the process: seen in most runs of torch 2.13 and 2.14 that
leave a group or a DDP model behind. What teardown does for users, it does here first.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from types import FunctionType, ModuleType
from typing import NoReturn

from runner.comm.ended import tell_end
from runner.comm.process_group import stop_process_group
from runner.job import Job
from runner.rendezvous.mpi_library import finalize_mpi

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def shutdown(code: int, *, collective: bool, job: Job | None = None) -> NoReturn:
    """End this process.

    Args:
        collective: leave the process group and MPI. MPI waits for the other ranks there, so only where all of
            them come to this point: never after an exception on one.
        job: where the ranks have met: this one's end is told, so that one that goes on waiting for it can name it.
    """
    _flush_files()  # first: what follows may take longer than the guard allows
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons, as teardown begins
    atexit._run_exitfuncs()
    if collective:
        if job is not None:
            tell_end(job)
        stop_process_group()
        _let_go_of_signals()
        _let_go()
    _flush_files()
    if collective and finalize_mpi():
        import ctypes

        ctypes.PyDLL(None).exit(
            code
        )  # C's exit: its handlers run, with the lock that some need, and the interpreter stays
    os._exit(code)


def _let_go() -> None:
    """Drop what the program's own names hold.

    That closes compressed and temporary files, and the connections of a group that a DDP model still has: a rank that
    waits for this one in a collective ends then, and not after the group's time limit, while MPI's end waits for it.
    """
    threading.excepthook = lambda _: None  # daemon threads, which Python's own end would stop, miss the names
    names = sys.modules["__main__"].__dict__
    for are_last in (False, True):  # what a destructor uses goes after what is destroyed
        for name in reversed(list(names)):
            if are_last or not isinstance(names[name], ModuleType | FunctionType | type):
                del names[name]
        gc.collect()


def _let_go_of_signals() -> None:
    """The program's handlers need its names: from now on what it was told is ignored, and what ends it ends it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            told = number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
            signal.signal(number, signal.SIG_IGN if told else signal.SIG_DFL)


def _flush_files() -> None:
    """Write out the files that the program has not closed."""
    for thing in gc.get_objects():
        # (isinstance() would ask objects that warn when they are looked at.)
        if issubclass(type(thing), _BUFFERED):
            with contextlib.suppress(Exception):
                thing.flush()
