"""Calls of libraries by a guard's threads: the guard does not fork meanwhile, as the library's locks would stay held in the new process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAITING = 1.0  # seconds that a fork waits for such a call: not longer for one that hangs

_LOCK = threading.Lock()


@contextmanager
def in_library() -> Iterator[None]:
    """For a thread: around a call into a library that has locks, such as NVML or the resolver."""
    with _LOCK:
        yield


@contextmanager
def outside_of_libraries() -> Iterator[None]:
    """Around a fork: no thread is in such a call, or it has hung."""
    is_held = _LOCK.acquire(timeout=WAITING)
    try:
        yield
    finally:
        if is_held:
            _LOCK.release()
