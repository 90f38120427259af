"""How a thread waits for MPI: it looks again at once where nobody else wants its core, and naps where somebody does.

Who looks without a pause sees first what has come, and takes the core from whom it waits for where the two share one. Linux
counts the time for which a thread was ready to run and did not. That grows only where a core is shared, whoever with: other
ranks, data loaders, a neighbour's job, this process's own computing.

Measured (Linux 6, 2 virtual cores, a busy loop on each): after 1 ms of looking a nap of 50 µs lasts 1.1 ms longer, as the
turn has to be waited for; after 50 µs it lasts 0.02 ms longer.
"""

from __future__ import annotations

import math
import os
import resource
import threading
import time
from typing import NamedTuple

MOST_SPINNING = 2e-3  # seconds of looking without a pause, where the core is ours
LEAST_SPINNING = 20e-6
_SHORTEST_NAP = 50e-6
_LONGEST_NAP = 5e-3  # with the look after it, it takes up to 100 µs of computing: 2 % of a core
_SHARE_OF_WAIT = 50  # a nap is at most this part of what has been waited, so it adds no more to that
_SHARED = 0.1  # the part of a time for which a thread was ready and not running, from which on its core is shared
_STALE = 5e-3  # seconds after which a feeling is asked for anew
_MEMORY = 0.1  # seconds after which what has been felt counts for a third
_A_LOOK = 100e-6  # seconds of computing: a look that takes more has moved data (in vain it takes 2 to 45 µs)


class Core:
    """What a thread has felt of others on its core, and so for how long it looks without a pause."""

    def __init__(self, *, crowded: bool) -> None:
        self.spinning = LEAST_SPINNING if crowded else MOST_SPINNING
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1
        self._last = self._now()
        self._foreign = 0.0  # the part of the time for which other processes have had it

    def __del__(self) -> None:
        if self._schedstat >= 0:
            os.close(self._schedstat)

    def is_wanted_by_other_processes(self) -> bool:
        """Whether it has been of late; then a call that spins to its end is no good."""
        if time.perf_counter() - self._last.clock > _STALE:
            self.feel()
        return self._foreign > _SHARED

    def feel(self) -> None:
        """Ask for how long this thread has waited for its core since it was asked last. Takes 3 µs."""
        last, now = self._last, self._now()
        few = _SHARED * (now.clock - last.clock)
        delay = now.delay - last.delay
        if delay > few:
            self.spinning = max(LEAST_SPINNING, self.spinning / 4)
        else:
            self.spinning = min(MOST_SPINNING, self.spinning * 1.5)
        # What this process's other threads have computed meanwhile may have been on this core: it is no one else's.
        elapsed = now.clock - last.clock
        foreign = min(1.0, max(0.0, delay - (now.others - last.others)) / elapsed)
        self._foreign += (foreign - self._foreign) * (1 - math.exp(-elapsed / _MEMORY))
        self._last = now

    def _now(self) -> _Times:
        return _Times(time.perf_counter(), self._delayed(), time.process_time() - time.thread_time())

    def _delayed(self) -> float:
        """Seconds for which this thread was ready to run and did not; where Linux does not say, a time slice per switch."""
        if self._schedstat >= 0:
            return int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw * 3e-3


class _Times(NamedTuple):
    """In seconds."""

    clock: float
    delay: float
    others: float  # that other threads of this process have computed


class Cores:
    """Each thread's.

    Args:
        crowded: there are more ranks than cores, so that no thread has to find out that its core is shared.
    """

    def __init__(self, *, crowded: bool) -> None:
        self.crowded = crowded
        self._of = threading.local()

    def own(self) -> Core:
        core: Core | None = getattr(self._of, "core", None)
        if core is None:
            core = self._of.core = Core(crowded=self.crowded)
        return core


class Patience:
    """One wait: ``pause`` after each look in vain, ``moved`` after one that has found something."""

    def __init__(self, core: Core) -> None:
        self._core, self.naps, self._long_looks = core, False, 0
        self._began = self._moved = time.perf_counter()
        self._computed = time.thread_time()

    def pause(self) -> float:
        """Let time pass, none where it is better to look again at once. Returns the seconds since the wait began."""
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
