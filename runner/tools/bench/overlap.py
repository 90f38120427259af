"""How much of a collective hides behind products of matrices that are computed meanwhile."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import torch

from runner.comm.timing import seconds_per_call

# A product takes a millisecond or so, for little of the work to be Python's: a thread that moves the data in Python needs
# the interpreter's lock.
_LONGEST = 1.5e-3  # seconds
_WIDTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)  # of square matrices
_TURN = 0.05  # seconds that the calls of a turn take together: ranks leave a barrier some milliseconds apart
_MOST = 500  # calls in a turn
_TRIALS = 10  # products, of which the time of one is known


def overlap(start: Callable[[], Callable[[], object]], alone: float, rounds: int, device: torch.device) -> float:
    """The share that is hidden: (alone + work − both) ÷ the smaller of the two, from 0 to 1.

    The formula is that of the Intel MPI Benchmarks (User Guide, IMB-NBC).

    Args:
        start: start the collective; returns what waits for it.
        alone: seconds it takes, the same on all ranks; the products are as many as take about as long.
        rounds: to take the median of.
        device: what the products are computed on.
    """
    product, each = _product(min(alone, _LONGEST), device)
    times, repeats = max(1, round(alone / each)), max(1, min(_MOST, round(_TURN / alone)))

    def work() -> None:
        for _ in range(times):
            product()

    def collective() -> None:
        wait = start()
        wait()

    def both() -> None:
        wait = start()
        work()
        wait()

    found = []
    for _ in range(rounds):
        pure, computed, together = (seconds_per_call(call, repeats, device) for call in (collective, work, both))
        found.append((pure + computed - together) / min(pure, computed))
    return max(0.0, min(1.0, statistics.median(found)))


def _product(longest: float, device: torch.device) -> tuple[Callable[[], object], float]:
    """The largest product that takes at most so many seconds, or else the smallest, and the seconds that it takes."""
    found: tuple[Callable[[], object], float] | None = None
    for width in _WIDTHS:
        one, other, result = (torch.ones(width, width, device=device) for _ in range(3))
        product = functools.partial(torch.mm, one, other, out=result)
        product()  # the first takes longer
        each = seconds_per_call(product, _TRIALS, device)
        if found is not None and each > longest:
            break
        found = product, each
    assert found is not None
    return found
