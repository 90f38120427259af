"""The end of a worker: exit handlers, process groups, open files, then the exit itself.

The interpreter's own teardown is skipped. A gloo thread that asks for the interpreter's lock during teardown is ended
inside a destructor, which aborts the process: seen in most runs of torch 2.13 and 2.14 that leave a group or a DDP
model behind. What teardown does for users is done here first.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import NoReturn

from runner.backends.process_group import stop_process_group
from runner.base.collector import open_files
from runner.rendezvous.methods.mpi_library import finalize_mpi


def shutdown(code: int, *, collective: bool, before_leaving: Callable[[], None] = lambda: None) -> NoReturn:
    """End this process.

    Args:
        collective: leave the process group and MPI. MPI_Finalize() waits for the other ranks, so this is allowed only
            if all of them come here: never after an exception on one.
        before_leaving: called when the program has done all that it does, and MPI_Finalize() may still wait for others.
    """
    _flush_files()  # first: what follows may take longer than the guard allows
    threading._shutdown()  # type: ignore[attr-defined]  # waits for non-daemon threads, as teardown does first
    atexit._run_exitfuncs()
    before_leaving()
    if collective:
        stop_process_group()
        _reset_signal_handlers()
        delete_globals()
    _flush_files()
    if collective and finalize_mpi():
        import ctypes

        # C's exit: it runs C's handlers, with the lock that some need, and does not tear the interpreter down.
        ctypes.PyDLL(None).exit(code)
    os._exit(code)


def delete_globals() -> None:
    """Delete the program's global names.

    This closes compressed and temporary files, and the connections of a group that a DDP model still holds. So a rank
    that waits for this one in a collective fails now and not after the group's time limit, for which MPI_Finalize()
    would wait.
    """
    threading.excepthook = lambda _: None  # daemon threads, which teardown would stop, fail without the names
    names = sys.modules["__main__"].__dict__
    code = [name for name, value in names.items() if isinstance(value, ModuleType | FunctionType | type)]
    has_own_code = any(getattr(names[name], "__module__", None) == "__main__" for name in code)
    for name in reversed([name for name in names if name not in code]):
        del names[name]
    gc.collect()
    for name in reversed(code):  # last: destructors use them
        del names[name]
    if has_own_code:  # a function or class may hold something, too; a collection may take 0.2 s
        gc.collect()


def _reset_signal_handlers() -> None:
    """Remove the program's signal handlers, which need its names: informing signals are ignored, others have the default."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            told = number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
            signal.signal(number, signal.SIG_IGN if told else signal.SIG_DFL)


def _flush_files() -> None:
    """Flush the files that the program has not closed."""
    for file in open_files():
        with contextlib.suppress(Exception):
            file.flush()
