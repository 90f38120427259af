"""Which rank keeps the others waiting, from the time that each needs by itself in a step: no collective of its own."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence

import torch.distributed as dist

from runner.training.run import Run

_STEPS = 20  # before anything is printed; the median counts, so a pause now and then does not
_NEWEST = 200
# A straggler takes so many times as long as the others, and the difference is so large a share of a step, and so many seconds.
_RATIO, _SHARE, _LEAST = 1.5, 0.1, 0.005


class Pace:
    """This rank's times: from the beginning of a step until it may wait for others in it.

    That is batch and forward pass, as the host sees them; what is slow in the backward pass alone is not seen.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ranks = dist.get_process_group_ranks(run.group())  # the data-parallel ones, this one among them
        # Where ranks share cores the system's scheduler decides who waits.
        self._is_watched = not run.job.placement.is_crowded
        self._own: deque[float] = deque(maxlen=_NEWEST)
        self._whole: deque[float] = deque(maxlen=_NEWEST)
        self._began = 0.0
        self.newest: float | None = None  # seconds of the last step that were this rank's own, if they are known
        self.data = 0.0  # seconds of the last step until its batch was there
        self._of_all: list[float] = []  # each data-parallel rank's seconds, as they were last gathered
        self._reported: set[int] = set()

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def see_batch(self) -> None:
        """The step's batch is there."""
        self.data = time.perf_counter() - self._began

    def end(self, ready: float | None) -> None:
        """It is done. ``ready``: when the rank's own part of it was (time.perf_counter()), if that is known."""
        if ready is None or not self._is_watched:
            return
        self.newest = ready - self._began
        self._own.append(self.newest)
        self._whole.append(time.perf_counter() - self._began)

    def share(self) -> list[float]:
        """A row with this rank's median time and zeros; the sum of all ranks' rows has every rank's time, or 0 if it is unknown."""
        times = [0.0] * len(self._ranks)
        if len(self._own) >= _STEPS:
            times[self._ranks.index(self._run.rank)] = statistics.median(self._own)
        return times

    def take_sums(self, sums: list[float]) -> None:
        """The ranks' sums of their shares."""
        self._of_all = sums

    def line(self) -> str | None:
        """The line to print about the times that were gathered, once about each rank."""
        times = self._of_all
        slow = straggler(times, statistics.median(self._whole)) if self._whole else None
        if slow is None or (rank := self._ranks[slow]) in self._reported:
            return None
        self._reported.add(rank)
        host = self._run.job.topology.records[rank].host
        others = statistics.median_low([*times[:slow], *times[slow + 1 :]])
        return (
            f"rank {rank} on host {host} keeps the others waiting: {1000 * times[slow]:.0f} ms in a step before it exchanges "
            f"anything, the others {1000 * others:.0f} ms; look at that host's load, clock rates and data"
        )


def straggler(times: Sequence[float], step: float) -> int | None:
    """The index of the rank that is clearly slower than the others, if there is one.

    Args:
        times: seconds that each rank needs by itself in a step; 0 where it is not known.
        step: seconds of a whole step.
    """
    if len(times) < 2 or not all(times):
        return None
    slow = max(range(len(times)), key=lambda index: times[index])
    others = statistics.median_low([*times[:slow], *times[slow + 1 :]])
    longer = times[slow] - others
    return slow if times[slow] > _RATIO * others and longer > max(_SHARE * step, _LEAST) else None
