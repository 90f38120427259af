"""System calls about a process and its children, and forks of a process whose threads call libraries."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runner.base.errors import EXIT_FAILURE

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
WAIT_SECONDS = 1.0  # seconds that a fork waits for calls of libraries: not longer for one that hangs

_CHANGE = threading.Condition()
_inside: set[int] = set()  # the threads that are in such a call: one that hangs does not keep another from its own


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process, so that they can be found and reaped."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_process(name: str) -> str:
    """Give this process a name of 15 letters at most, which ps and top show. Returns the one before."""
    with open("/proc/self/comm", encoding="utf-8", errors="surrogateescape") as file:
        before = file.read().rstrip("\n")
    ctypes.CDLL(None).prctl(_PR_SET_NAME, os.fsencode(name), 0, 0, 0)
    return before


def die_with(parent: int, by: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent, such as the agent, dies for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(EXIT_FAILURE)


@contextmanager
def in_library() -> Iterator[None]:
    """Mark a thread's call into a library, such as NVML or the resolver: its locks would stay held in a process forked meanwhile."""
    with _CHANGE:
        _inside.add(threading.get_ident())
    try:
        yield
    finally:
        with _CHANGE:
            _inside.remove(threading.get_ident())
            _CHANGE.notify_all()


@contextmanager
def outside_of_libraries() -> Iterator[None]:
    """Around a fork: no thread is in such a call, or it has hung; and none begins one."""
    with _CHANGE:
        _CHANGE.wait_for(lambda: not _inside, WAIT_SECONDS)
        yield
