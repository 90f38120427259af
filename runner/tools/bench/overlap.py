"""How much of a collective hides behind a backward pass that goes on meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_WIDTH, _BATCH = 256, 64  # of the linear layer whose backward pass is the work beside


def overlap(start: Callable[[], Callable[[], object]], alone: float, rounds: int, device: torch.device) -> float:
    """The share that is hidden: (alone + backward − both) ÷ the smaller of the two, from 0 to 1.

    The formula is that of the Intel MPI Benchmarks (User Guide, IMB-NBC).

    Args:
        start: start the collective; returns what waits for it.
        alone: seconds it takes, the same on all ranks; the backward pass is repeated to take about as long.
        rounds: to take the median of.
        device: what the backward pass is computed on.
    """
    layer = torch.nn.Linear(_WIDTH, _WIDTH, device=device)
    loss = layer(torch.ones(_BATCH, _WIDTH, device=device, requires_grad=True)).sum()

    def backward(times: int) -> None:
        for _ in range(times):
            torch.autograd.backward(loss, retain_graph=True)

    def collective() -> None:
        wait = start()
        wait()

    def both() -> None:
        wait = start()
        backward(times)
        wait()

    backward(3)
    times = max(1, round(alone / _seconds(lambda: backward(10), device) * 10))
    found = []
    for _ in range(rounds):
        pure, computed, together = (_seconds(call, device) for call in (collective, lambda: backward(times), both))
        found.append((pure + computed - together) / min(pure, computed))
    return max(0.0, min(1.0, statistics.median(found)))


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """The slowest rank's."""
    dist.barrier()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds.item())
