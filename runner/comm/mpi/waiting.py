"""How a thread waits for MPI: it looks again at once where nobody else wants its core, and naps where somebody does.

Who looks without a pause sees first what has come, and takes the core from whom it waits for where the two share one. Linux
counts the time for which a thread was ready to run and did not. That grows only where a core is shared, whoever with: other
ranks, data loaders, a neighbour's job, this process's own computing.

Measured (Linux 6, 2 virtual cores, a busy loop on each): after 1 ms of looking a nap of 50 µs lasts 1.1 ms longer, as the
turn has to be waited for; after 50 µs it lasts 0.02 ms longer.
"""

from __future__ import annotations

import os
import resource
import threading
import time

MOST_SPINNING = 2e-3  # seconds of looking without a pause, where the core is ours
LEAST_SPINNING = 20e-6
_SHORTEST_NAP = 50e-6
_LONGEST_NAP = 2e-3  # a nap takes 30 µs of computing, so this is 1.5 % of a core
_SHARE_OF_WAIT = 50  # a nap is at most this part of what has been waited, so it adds no more to that
_SHARED = 0.1  # the part of a time for which a thread was ready and not running, from which on its core is shared
_STALE = 5e-3  # seconds after which a feeling is asked for anew
_A_LOOK = 15e-6  # seconds of computing that a look in vain takes at most: more is MPI moving data


class Core:
    """What a thread has felt of others on its core, and so for how long it looks without a pause."""

    def __init__(self, *, crowded: bool) -> None:
        self.spinning = LEAST_SPINNING if crowded else MOST_SPINNING
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._schedstat = -1
        self._delay, self._at = self._delayed(), time.perf_counter()

    def __del__(self) -> None:
        if self._schedstat >= 0:
            os.close(self._schedstat)

    def is_shared(self) -> bool:
        if time.perf_counter() - self._at > _STALE:
            self.feel()
        return self.spinning <= MOST_SPINNING / 4

    def feel(self) -> None:
        """Ask for how long this thread has waited for its core since it was asked last. Takes 2 µs."""
        delay, now = self._delayed(), time.perf_counter()
        if delay - self._delay > _SHARED * (now - self._at):
            self.spinning = max(LEAST_SPINNING, self.spinning / 4)
        else:
            self.spinning = min(MOST_SPINNING, self.spinning * 1.5)
        self._delay, self._at = delay, now

    def _delayed(self) -> float:
        """Seconds for which this thread was ready to run and did not; where Linux does not say, a time slice per switch."""
        if self._schedstat >= 0:
            return int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw * 3e-3


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
        self._core, self._naps = core, False
        self._began = self._moved = time.perf_counter()
        self._computed = time.thread_time()

    def pause(self) -> float:
        """Let time pass, none where it is better to look again at once. Returns the seconds since the wait began."""
        now, computed = time.perf_counter(), time.thread_time()
        if computed - self._computed > _A_LOOK:
            self._moved, self._naps = now, False
        elif now - self._moved >= self._core.spinning:
            if not self._naps:
                self._core.feel()
                self._naps = True
            time.sleep(min(_LONGEST_NAP, max(_SHORTEST_NAP, (now - self._moved) / _SHARE_OF_WAIT)))
            computed = time.thread_time()
        self._computed = computed
        return now - self._began

    def moved(self) -> None:
        self._moved, self._naps = time.perf_counter(), False
