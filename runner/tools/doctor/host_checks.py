"""Checks of what each host offers its ranks: cores, memory, and limits of the operating system."""

from __future__ import annotations

import glob
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.base.quantities import size_text
from runner.hardware.control_groups import free_memory
from runner.hardware.core_map import cores_of
from runner.hardware.resources import of_record
from runner.job import Job
from runner.launch.host_lists import expand_hosts
from runner.tools.doctor.examine import Team, Verdict, counted, fail, ok, warn, where

GIB = 1 << 30
MIB = 1 << 20
# A rank that has imported torch 2.14 takes half a GiB (measured: 505 MB resident, 280 MB of it private).
_MEMORY_FAIL, _MEMORY_WARN = GIB // 2, 2 * GIB  # bytes per rank
# A container's /dev/shm is 64 MiB by default. Data loader workers pass batches through it, and NCCL passes messages.
_SHARED_FAIL, _SHARED_WARN = 8 * MIB, 256 * MIB  # bytes per rank


def cores(job: Job, team: Team) -> Verdict:
    """Check that the launcher bound ranks to enough cores, and that there are no more threads than cores."""
    team.gather("")
    bound = next((placement for placement in job.placements if placement.problem), None)
    if bound is not None:
        return warn(bound.problem, bound.fix)
    texts = []
    for host in job.topology.hosts:
        sharers = [of_record(job.topology.records[rank].resources) for rank in host.ranks]
        usable = len({core for own in sharers for core in cores_of(own.cores)})
        usable = min([usable, *(max(1, int(own.quota)) for own in sharers if own.quota)])
        threads = sum(job.placements[rank].threads for rank in host.ranks)
        if len(host.ranks) > usable:
            return warn(
                f"{len(host.ranks)} ranks share {counted(usable, 'core')} on {host.name}",
                f"start {usable} per host ({job.context.launcher.ranks_per_host.format(n=usable) or 'fewer ranks'}), "
                "or ask the scheduler for more cores per rank",
            )
        if threads > usable:
            return warn(
                f"{threads} threads on {counted(usable, 'core')} of {host.name}: {job.placements[host.ranks[0]].threads} "
                f"per rank, by {job.placements[host.ranks[0]].threads_source}",
                f"unset OMP_NUM_THREADS, or set it to {max(1, usable // len(host.ranks))}",
            )
        threads = job.placements[host.ranks[0]].threads
        texts.append(f"{counted(len(host.ranks), 'rank')} × {counted(threads, 'thread')} on {counted(usable, 'core')}")
    return ok("; ".join(dict.fromkeys(texts)))


def numa(job: Job, team: Team) -> Verdict:
    """Check that each rank's cores lie in one NUMA node, if there are at least as many ranks as nodes."""
    nodes = _numa_nodes()
    own = os.sched_getaffinity(0)
    found = team.gather([len(nodes), sum(1 for node in nodes if node & own)])
    spread = [
        rank
        for rank, (count, spanned) in enumerate(found)
        if spanned > 1 and job.topology.local_size(rank) >= count and job.topology.local_size(rank) > 1
    ]
    if spread:
        return warn(
            f"{where(spread, job.topology)}: cores of {found[spread[0]][1]} NUMA nodes each, so half of the memory is far away",
            job.context.launcher.bind_numa or "numactl --cpunodebind=N --membind=N, a node per rank",
        )
    return ok(f"{counted(max(count for count, _ in found), 'NUMA node')} per host")


def _numa_nodes() -> list[set[int]]:
    """The cores of each NUMA node that has any (Linux: Documentation/admin-guide/mm/numaperf)."""
    nodes = []
    for path in glob.glob("/sys/devices/system/node/node[0-9]*/cpulist"):
        text = Path(path).read_text().strip()
        nodes.append({int(core) for core in expand_hosts(f"[{text}]")} if text else set())  # 0-3,8: as in host lists
    return [node for node in nodes if node]


def memory(job: Job, team: Team) -> Verdict:
    """Check the free memory per rank."""
    return _per_rank(
        job,
        team.gather(free_memory()),
        (_MEMORY_FAIL, _MEMORY_WARN),
        "ask the scheduler for more (--mem, mem=), or start fewer ranks per host",
    )


def shared_memory(job: Job, team: Team) -> Verdict:
    """Check the shared memory by which ranks and data loader workers of a host exchange data."""
    folder = "/dev/shm"  # noqa: S108 - no temporary file: this folder is checked
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize if os.access(folder, os.W_OK) else 0
    return _per_rank(
        job,
        team.gather(free),
        (_SHARED_FAIL, _SHARED_WARN),
        "in a container: --shm-size=8g, or --ipc=host; else remove old files from /dev/shm, or enlarge it",
    )


def _per_rank(job: Job, found: Sequence[int], limits: tuple[int, int], fix: str) -> Verdict:
    """The verdict on bytes that the ranks of a host share; ``found`` is by rank."""
    per_rank = [free / job.topology.local_size(rank) for rank, free in enumerate(found)]
    least = min(range(job.size), key=per_rank.__getitem__)
    text = (
        f"{size_text(per_rank[least], 1024)} per rank free on {job.topology.hosts[job.topology.host_index(least)].name}"
    )
    if per_rank[least] < limits[0]:
        return fail(text, fix)
    return warn(text, fix) if per_rank[least] < limits[1] else ok(text)


def limits(job: Job, team: Team) -> Verdict:
    """Limits of the operating system that large jobs reach: open files, address space, locked memory."""
    kinds = {"files": resource.RLIMIT_NOFILE, "space": resource.RLIMIT_AS, "locked": resource.RLIMIT_MEMLOCK}
    own: dict[str, Any] = {name: list(resource.getrlimit(kind)) for name, kind in kinds.items()}
    own["fabric"] = bool(glob.glob("/sys/class/infiniband/*"))
    found = team.gather(own)
    # Connections to every other rank, in the store and in a few groups, plus files.
    needed = max(1024, 4 * job.size + 256)
    few = [r for r, one in enumerate(found) if 0 <= one["files"][0] < needed]
    if few:
        soft, hard = found[few[0]]["files"]
        can = "" if hard < 0 or hard >= needed else f" (the hard limit is {hard}: ask your site)"
        return warn(f"{soft} open files on {where(few, job.topology)}", f"ulimit -n {needed} before the launch{can}")
    narrow = [r for r, one in enumerate(found) if one["space"][0] >= 0]
    if narrow:
        size = found[narrow[0]]["space"][0] / GIB
        return warn(
            f"{size:.0f} GiB of address space on {where(narrow, job.topology)}",
            "ulimit -v unlimited: CUDA maps far more than it uses",
        )
    locked = [r for r, one in enumerate(found) if one["fabric"] and 0 <= one["locked"][0] < GIB]
    if locked:
        size = found[locked[0]]["locked"][0] / MIB
        return warn(
            f"{size:.0f} MiB may be locked on {where(locked, job.topology)}, which have a fabric",
            "ulimit -l unlimited, in the limits of the scheduler's daemon: RDMA locks its buffers",
        )
    return ok(f"{found[0]['files'][0]} open files")
