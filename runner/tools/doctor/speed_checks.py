"""Communication speed: an allreduce of several sizes, and each pair of neighbouring ranks by itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from runner.backends.process_group import start_process_group
from runner.backends.selection import network_backend
from runner.base.environment import set_missing
from runner.job import Job
from runner.tools.doctor.examine import Team, Verdict, counted, ok, warn, where

if TYPE_CHECKING:
    import torch

MIB = 1 << 20
_SIZES = {"4 KiB": 4096, "256 KiB": 256 * 1024, "4 MiB": 4 * MIB}  # bytes
_PAIR_BYTES = MIB
# Gigabit Ethernet carries 0.117 GB/s. Below half of that, a network is faulty or too slow to train on.
_SLOW = 0.05  # GB/s
_STARTING = 8.0  # seconds, for each step of the group's start
_TOO_LATE = 0.1  # seconds that an allreduce of 4 KiB may take


def allreduce(job: Job, team: Team) -> Verdict:
    """Start a process group over the network (gloo or NCCL), check an allreduce, and time it."""
    import torch
    import torch.distributed as dist

    if job.size == 1:
        team.gather({})
        return ok("one rank: nothing to reduce")
    # Otherwise NCCL's watchdog would end the process before the report.
    set_missing({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})
    start_process_group(replace(job, backend=network_backend(job), collective_timeout=_STARTING))
    device = _device(job)
    seconds = {}
    for title, size in _SIZES.items():
        data = torch.ones(size // 4, device=device)
        dist.all_reduce(data)
        if not bool((data == job.size).all()):
            raise ValueError(f"an allreduce of {title} gave {data[0].item()}, not {job.size}")
        seconds[title] = _per_call(partial(dist.all_reduce, data.zero_()), device)
    team.gather("")
    # nccl-tests, PERFORMANCE.md: each byte crosses the busiest link 2 (n - 1) / n times.
    bus = _SIZES["4 MiB"] / seconds["4 MiB"] * 2 * (job.size - 1) / job.size / 1e9
    text = f"{dist.get_backend()}: " + ", ".join(f"{title} {s * 1000:.2g} ms" for title, s in seconds.items())
    text += f" ({bus:.2g} GB/s on the bus)"
    if bus < _SLOW or seconds["4 KiB"] > _TOO_LATE:
        return warn(
            text, "the check of links names the slow one; look at the interface chosen, and at cores that ranks share"
        )
    return ok(text)


def _per_call(call: Callable[[], object], device: torch.device) -> float:
    """Seconds per call of the slowest rank, over the calls that fit in 0.2 s, at most 50."""
    from runner.backends.timing import seconds_per_call

    once = seconds_per_call(call, 1, device)  # the same on all ranks, so all make the same number of calls
    count = min(50, int(0.2 / once))
    return seconds_per_call(call, count, device) if count else once


def links(job: Job, team: Team) -> Verdict:
    """Time each pair of neighbouring ranks, with each rank in one pair at a time, and name the slow rank or link."""
    import torch
    import torch.distributed as dist

    found: list[Any] = []
    if job.size > 1:
        if not dist.is_initialized():
            raise ValueError("there is no process group: see allreduce")
        data = torch.zeros(_PAIR_BYTES // 4, device=_device(job))
        for pairs in rounds_of_pairs(job.size):
            for low, high in pairs:
                if job.rank in (low, high):
                    found.append([low, high, min(_there_and_back(job.rank, low, high, data) for _ in range(3))])
            dist.barrier()
    everyone = team.gather([pair for pair in found if pair[0] == job.rank])
    if job.size == 1:
        return ok("one rank: no links")
    # A round trip carries twice the bytes.
    speeds = {(low, high): 2 * _PAIR_BYTES / s / 1e9 for one in everyone for low, high, s in one}
    return judge_links(job, speeds)


def judge_links(job: Job, speeds: dict[tuple[int, int], float]) -> Verdict:
    """Judge the pairs' speeds in GB/s: name the slow links, or the slow ranks."""
    slow = {pair for pair, speed in speeds.items() if speed < _SLOW}
    text = f"{counted(len(speeds), 'neighbour pair')}, {min(speeds.values()):.2g} to {max(speeds.values()):.2g} GB/s"
    if not slow:
        return ok(text)
    # A rank with only slow pairs is the cause, unless that holds for every rank.
    pairs_of = {rank: [pair for pair in speeds if rank in pair] for pair in speeds for rank in pair}
    culprits = [rank for rank, pairs in pairs_of.items() if len(pairs) > 1 and slow.issuperset(pairs)]
    worst = statistics.median(speeds[pair] for pair in slow)
    if culprits and len(culprits) < job.size:
        named = f"{where(culprits, job.topology)}: slow with every neighbour"
    else:
        named = ", ".join(f"{where([a], job.topology)} – {where([b], job.topology)}" for a, b in sorted(slow)[:6])
    return warn(
        f"{named}: {worst:.2g} GB/s (of all pairs: {min(speeds.values()):.2g} to {max(speeds.values()):.2g})",
        "leave that host out, or have its link, cable and switch port looked at; within a host: cores that are shared",
    )


def rounds_of_pairs(size: int) -> list[list[tuple[int, int]]]:
    """Return all pairs of neighbours in a ring, in rounds. In a round each rank is in at most one pair."""
    ring = sorted({tuple(sorted((rank, (rank + 1) % size))) for rank in range(size)})
    rounds: list[list[tuple[int, int]]] = []
    for low, high in ring:
        fitting = next((pairs for pairs in rounds if not {low, high} & {r for pair in pairs for r in pair}), None)
        if fitting is None:
            rounds.append(fitting := [])
        fitting.append((low, high))
    return rounds


def _there_and_back(rank: int, low: int, high: int, data: torch.Tensor) -> float:
    import torch.distributed as dist

    from runner.backends.timing import synchronize

    start = time.monotonic()
    for sender, receiver in ((low, high), (high, low)):
        if rank == sender:
            dist.send(data, receiver)
        else:
            dist.recv(data, sender)
    synchronize(data.device)
    return time.monotonic() - start


def _device(job: Job) -> torch.device:
    import torch

    return torch.device(job.placement.torch_device)
