"""How a thread waits for MPI: it spins (tests without a pause) while it has its core alone, and naps if the core is shared.

Spinning notices a completed request first, but on a shared core it takes the time from the thread that it waits for. Linux
counts the time for which a thread was ready to run and did not run. That grows only if the core is shared: with other ranks,
data loaders, another job, or this process's own computing.

Measured (Linux 6, 2 virtual cores, a busy loop on each): after 1 ms of spinning a nap of 50 µs lasts 1.1 ms longer, as the
thread has to wait for its time slice; after 50 µs of spinning it lasts 0.02 ms longer.
"""

from __future__ import annotations

import math
import os
import resource
import threading
import time
from typing import NamedTuple

MOST_SPINNING = 2e-3  # seconds of spinning, if the core is not shared
LEAST_SPINNING = 20e-6
_SHORTEST_NAP = 50e-6
_LONGEST_NAP = 5e-3  # with the test after it, it takes up to 100 µs of computing: 2 % of a core
_SHARE_OF_WAIT = 50  # a nap is at most 1/50 of the time waited so far, so it lengthens the wait by no more than 2 %
_SHARED = 0.1  # a core counts as shared if the thread was ready but not running for this fraction of the time
_STALE = 5e-3  # seconds after which a measurement is repeated
_MEMORY = 0.1  # seconds after which a measurement's weight has fallen to 1/e
_A_LOOK = 100e-6  # seconds of computing: a test that takes more has moved data (otherwise it takes 2 to 45 µs)


class Core:
    """Measures how much others use a thread's core, and so for how long the thread should spin."""

    def __init__(self, *, crowded: bool) -> None:
        self.spinning = LEAST_SPINNING if crowded else MOST_SPINNING
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1
        self._last = self._now()
        self._foreign = 0.0  # the fraction of the time for which other processes have used the core

    def __del__(self) -> None:
        if self._schedstat >= 0:
            os.close(self._schedstat)

    def is_wanted_by_other_processes(self) -> bool:
        """Whether other processes have used the core lately; a call that spins to its end is then a bad choice."""
        if time.perf_counter() - self._last.clock > _STALE:
            self.feel()
        return self._foreign > _SHARED

    def feel(self) -> None:
        """Measure for how long this thread has waited for its core since the last measurement. Takes 3 µs."""
        last, now = self._last, self._now()
        few = _SHARED * (now.clock - last.clock)
        delay = now.delay - last.delay
        if delay > few:
            self.spinning = max(LEAST_SPINNING, self.spinning / 4)
        else:
            self.spinning = min(MOST_SPINNING, self.spinning * 1.5)
        # This process's other threads may have computed on this core meanwhile; that time is not another process's.
        elapsed = now.clock - last.clock
        foreign = min(1.0, max(0.0, delay - (now.others - last.others)) / elapsed)
        self._foreign += (foreign - self._foreign) * (1 - math.exp(-elapsed / _MEMORY))
        self._last = now

    def _now(self) -> _Times:
        return _Times(time.perf_counter(), self._delayed(), time.process_time() - time.thread_time())

    def _delayed(self) -> float:
        """Seconds for which this thread was ready but did not run; without schedstat, 3 ms per involuntary switch."""
        if self._schedstat >= 0:
            return int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw * 3e-3


class _Times(NamedTuple):
    """Times in seconds."""

    clock: float
    delay: float  # the thread was ready but did not run
    others: float  # computed by other threads of this process


class Cores:
    """Each thread's ``Core``.

    Args:
        crowded: there are more ranks than cores, so every thread assumes from the start that its core is shared.
    """

    def __init__(self, *, crowded: bool) -> None:
        self.crowded = crowded
        self._of = threading.local()

    def own(self) -> Core:
        core: Core | None = getattr(self._of, "core", None)
        if core is None:
            core = self._of.core = Core(crowded=self.crowded)
        return core


class Backoff:
    """The pauses of one wait: call ``pause`` after each test without progress, and ``moved`` after progress."""

    def __init__(self, core: Core) -> None:
        self._core, self.naps, self._long_looks = core, False, 0
        self._began = self._moved = time.perf_counter()
        self._computed = time.thread_time()

    def pause(self) -> float:
        """Nap, or return at once while spinning is better. Returns the seconds since the wait began."""
        now, computed = time.perf_counter(), time.thread_time()
        self._long_looks = self._long_looks + 1 if computed - self._computed > _A_LOOK else 0
        if self._long_looks > 1:
            self._moved, self.naps = now, False
        elif now - self._moved >= self._core.spinning:
            if not self.naps:
                self._core.feel()
                self.naps = True
            time.sleep(min(_LONGEST_NAP, max(_SHORTEST_NAP, (now - self._moved) / _SHARE_OF_WAIT)))
            computed = time.thread_time()
        self._computed = computed
        return now - self._began

    def moved(self) -> None:
        self._moved, self.naps = time.perf_counter(), False
