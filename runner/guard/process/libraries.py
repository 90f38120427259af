"""Calls of libraries by a guard's threads: the guard does not fork meanwhile, as the library's locks would stay held in the new process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = 1.0  # seconds that a fork waits for such calls: not longer for one that hangs

_CHANGE = threading.Condition()
_inside: set[int] = set()  # the threads that are in such a call: one that hangs does not keep another from its own


@contextmanager
def in_library() -> Iterator[None]:
    """Mark a thread's call into a library that has locks, such as NVML or the resolver."""
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
        _CHANGE.wait_for(lambda: not _inside, WAITING)
        yield
