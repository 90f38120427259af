"""Which rank keeps the others waiting, from the time that each needs by itself in a step: no collective of its own."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from runner.training.run import Run

_STEPS = 20  # before anything is said; the median counts, so a pause now and then does not
_NEWEST = 200
# A straggler takes so many times as long as the others, and the difference is so large a share of a step, and so many seconds.
_RATIO, _SHARE, _LEAST = 1.5, 0.1, 0.005


class Pace:
    """This rank's times: from the beginning of a step until it may wait for others in it.

    That is batch and forward pass, as the host sees them; what is slow in the backward pass alone is not seen.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._own: deque[float] = deque(maxlen=_NEWEST)
        self._whole: deque[float] = deque(maxlen=_NEWEST)
        self._began = 0.0
        self.newest: float | None = None  # seconds of the last step that were this rank's own, if they are known
        self._told: set[int] = set()

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def end(self, ready: float | None) -> None:
        """It is done. ``ready``: when the rank's own part of it was (time.perf_counter()), if that is known."""
        if ready is None or self._run.job.placement.is_crowded:
            return  # where ranks share cores the system's scheduler decides who waits
        self.newest = ready - self._began
        self._own.append(self.newest)
        self._whole.append(time.perf_counter() - self._began)

    def share(self) -> Tensor:
        """A number for each data-parallel rank, all but this one's 0: in the ranks' sum are the seconds of all, as far as known."""
        group = self._run.group()
        times = torch.zeros(dist.get_world_size(group), dtype=torch.float64, device=self._run.device)
        if len(self._own) >= _STEPS:
            times[dist.get_rank(group)] = statistics.median(self._own)
        return times

    def line(self, times: Sequence[float]) -> str | None:
        """What is to be said, once about each rank, of the sum of all shares."""
        slow = straggler(times, statistics.median(self._whole)) if self._whole else None
        rank = None if slow is None else dist.get_process_group_ranks(self._run.group())[slow]
        if slow is None or rank is None or rank in self._told:
            return None
        self._told.add(rank)
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
