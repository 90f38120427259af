"""Measure how long calls take on all ranks, including the device's work; the slowest rank counts."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from runner.backends.gpu import is_gpu


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what is queued on it."""
    if is_gpu(device):
        torch.accelerator.synchronize(device)


def largest(numbers: list[float], device: torch.device) -> list[float]:
    """The largest of each number over all ranks, in double precision. Collective."""
    over_ranks = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(over_ranks, dist.ReduceOp.MAX)
    found: list[float] = over_ranks.tolist()
    return found


def seconds_per_call(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """Return the mean seconds per call on the slowest rank, of calls that all ranks begin together. Collective."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return largest([(time.perf_counter() - start) / calls], device)[0]
