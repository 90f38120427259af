"""Detection of the rank that keeps the others waiting, by each rank's own time in a step. It needs no collective of its own."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import NamedTuple

from runner.backends.comparing import bounds
from runner.training.run import Run

_STEPS = 20  # before anything is printed; the median counts, so a pause now and then does not
_NEWEST = 200
# A straggler takes so many times as long as the others, and the difference is so large a share of a step, and so many seconds.
_RATIO, _SHARE, _LEAST = 1.5, 0.1, 0.005
_RANKS = 1 << 24  # more than there are


class Times(NamedTuple):
    """Facts about the ranks' times, in seconds.

    Attributes:
        longest: that of ``rank``.
        total: of the others together.
        others: how many there are.
    """

    rank: int
    longest: float
    total: float
    others: int


class Pace:
    """This rank's times: from the beginning of a step until it may wait for others in it.

    That is batch and forward pass, as the host sees them; what is slow in the backward pass alone is not seen.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # Where ranks share cores the system's scheduler decides who waits.
        self._is_watched = not run.job.placement.is_crowded
        self._own: deque[float] = deque(maxlen=_NEWEST)
        self._whole: deque[float] = deque(maxlen=_NEWEST)
        self._began = 0.0
        self.newest: float | None = None  # seconds of the last step that were this rank's own, if they are known
        self.data = 0.0  # seconds of the last step until its batch was there
        self._of_all: Times | None = None  # of the data-parallel ranks, as they were last gathered
        self._reported: set[int] = set()

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def see_batch(self) -> None:
        """The step's batch is there."""
        self.data = time.perf_counter() - self._began

    def end(self, ready: float | None) -> None:
        """Note the end of a step. ``ready``: the end of the rank's own part of the step (time.perf_counter()), if known."""
        if ready is None or not self._is_watched:
            return
        self.newest = ready - self._began
        self._own.append(self.newest)
        self._whole.append(time.perf_counter() - self._began)

    def share(self) -> list[float]:
        """This rank's median time, and 1; or zeros if it is unknown."""
        return [statistics.median(self._own), 1.0] if len(self._own) >= _STEPS else [0.0, 0.0]

    def take_sums(self, sums: list[float]) -> None:
        """The ranks' sums of their shares. Collective once all times are known: then one reduction finds the slowest rank."""
        total, known = sums
        self._of_all = None
        if known == self._run.data_size > 1:
            own = int(1e6 * statistics.median(self._own))
            ((_, slowest),) = bounds([own * _RANKS + self._run.rank], self._run.group())
            longest, rank = slowest // _RANKS / 1e6, slowest % _RANKS
            self._of_all = Times(rank, longest, total - longest, self._run.data_size - 1)

    def line(self) -> str | None:
        """The line to print about the times that were gathered, once about each rank."""
        times = self._of_all
        if times is None or not is_straggler(times, statistics.median(self._whole)) or times.rank in self._reported:
            return None
        self._reported.add(times.rank)
        host = self._run.job.topology.records[times.rank].host
        return (
            f"rank {times.rank} on host {host} keeps the others waiting: {1000 * times.longest:.0f} ms in a step before it exchanges "
            f"anything, the others {1000 * times.total / times.others:.0f} ms; look at that host's load, clock rates and data"
        )


def is_straggler(times: Times, step: float) -> bool:
    """Whether the slowest rank is clearly slower than the others are on average.

    Args:
        step: seconds of a whole step.
    """
    usual = times.total / times.others
    return times.longest > _RATIO * usual and times.longest - usual > max(_SHARE * step, _LEAST)
