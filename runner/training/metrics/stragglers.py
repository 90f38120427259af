"""Detection of the rank that keeps the others waiting, by each rank's own time in a step."""

from __future__ import annotations

import statistics
import time
from collections import deque

from runner.training.run import Run

_STEPS = 20  # steps before anything is printed; the median counts, so that a rare pause does not
_NEWEST = 200
# A straggler takes this many times as long as the others, and the difference is this share of a step, and this many seconds.
_RATIO, _SHARE, _LEAST_SECONDS = 1.5, 0.1, 0.005
_RANKS = 1 << 24  # more than there are


class Pace:
    """This rank's times from the beginning of a step until it may wait for others in the step.

    That is batch and forward pass, as the host sees them; a rank that is slow in the backward pass alone is not seen.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # The system's scheduler decides who waits if ranks share cores.
        self._is_watched = not run.job.placement.is_crowded
        self._own: deque[float] = deque(maxlen=_NEWEST)
        self._whole: deque[float] = deque(maxlen=_NEWEST)
        self._began = 0.0
        self.newest: float | None = None  # seconds of the last step that were this rank's own, if they are known
        self.data = 0.0  # seconds of the last step until its batch was there
        self.slowest: tuple[int, float, float] | None = None  # when last gathered: rank, its time, and the others' mean
        self._reported: set[int] = set()

    def begin(self) -> None:
        """Begin a step."""
        self._began = time.perf_counter()

    def see_batch(self) -> None:
        """Note that the step's batch is there."""
        self.data = time.perf_counter() - self._began

    def end(self, ready: float | None) -> None:
        """Note the end of a step. ``ready``: the end of the rank's own part of the step (time.perf_counter()), if known."""
        if ready is None or not self._is_watched:
            return
        self.newest = ready - self._began
        self._own.append(self.newest)
        self._whole.append(time.perf_counter() - self._began)

    def share(self) -> list[float]:
        """Return this rank's median time, and 1; or zeros if it is unknown."""
        return [statistics.median(self._own), 1.0] if len(self._own) >= _STEPS else [0.0, 0.0]

    def longest(self) -> int:
        """Return a number whose largest among the ranks tells the slowest rank and its time."""
        return int(1e6 * self.share()[0]) * _RANKS + self._run.rank

    def take(self, total: float, known: float, slowest: int) -> None:
        """Take the sums of the ranks' shares, and the largest ``longest`` of them."""
        self.slowest = None
        if known == self._run.data_size > 1:
            longest = slowest // _RANKS / 1e6
            self.slowest = slowest % _RANKS, longest, (total - longest) / (self._run.data_size - 1)

    def line(self) -> str | None:
        """Return the line to print about the times that were gathered, once about each rank."""
        if self.slowest is None:
            return None
        rank, longest, usual = self.slowest
        if rank in self._reported or not is_straggler(longest, usual, statistics.median(self._whole)):
            return None
        self._reported.add(rank)
        host = self._run.job.topology.records[rank].host
        return (
            f"rank {rank} on host {host} keeps the others waiting: {1000 * longest:.0f} ms in a step before it exchanges "
            f"anything, the others {1000 * usual:.0f} ms; look at that host's load, clock rates and data"
        )


def is_straggler(longest: float, usual: float, step: float) -> bool:
    """Return whether the slowest rank's seconds are clearly more than the others' mean, in steps that take this many seconds."""
    return longest > _RATIO * usual and longest - usual > max(_SHARE * step, _LEAST_SECONDS)
