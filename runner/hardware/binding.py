"""Cores of its own for each rank: a pure function of what the ranks of a host may use, and the system calls that apply it."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import os
import platform
import re
from collections.abc import Iterator, Sequence

from runner.base.errors import RefusedError, UsageError
from runner.hardware.core_map import LEVELS, MOST_CORES, CoreMap, cores_of, cores_text, node_of
from runner.hardware.resources import Resources

AUTO, NONE = "auto", "none"
# OpenMP binds its threads by these when it is loaded.
OPENMP_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

_LIST = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")
_Cores = frozenset[int]


def parse_binding(text: str) -> str:
    """Read the value of --bind: ``auto``, ``none``, or the cores of each local rank: ``0-3:4-7``.

    Raises:
        argparse.ArgumentTypeError: it is none of these.
    """
    if text in (AUTO, NONE):
        return text
    for cores in text.split(":"):
        numbers = [[int(end) for end in run.split("-")] for run in cores.split(",")] if _LIST.fullmatch(cores) else [[]]
        if not all(run and run[0] <= run[-1] < MOST_CORES for run in numbers):
            raise argparse.ArgumentTypeError(
                f"{text!r} is neither auto, none nor a list of cores for each rank of a host, such as 0-3:4-7"
            )
    return text


def bind_host(asked: str, host: str, sharers: Sequence[Resources], gpus: Sequence[int | None]) -> list[str]:
    """Return the cores to which each rank of a host is bound, as Linux lists them; "" for a rank that keeps its launcher's.

    ``auto`` changes something only where several ranks have the same cores. It divides them among these ranks if no other job
    uses them. If there are fewer cores than ranks, it takes all that the job may use on this host.

    Args:
        asked: a value of --bind.
        host: its name, for messages.
        sharers: the resources of its ranks.
        gpus: the index of each rank's GPU among those that it sees.

    Raises:
        UsageError: a list of cores has too few entries.
        RefusedError: it names a core twice, or one that a rank may not use.
    """
    if asked == NONE:
        return [""] * len(sharers)
    if asked != AUTO:
        return _listed(asked, host, sharers)
    bound = [""] * len(sharers)
    levels = core_map_of(sharers)
    for group, cores in _to_divide(sharers) if levels else ():
        near = [_near(sharers[rank], gpus[rank]) for rank in group]
        pieces = divide(_with_gpus(cores, near, levels), len(group), levels)
        for rank, piece in zip(group, _nearest(pieces, near, levels), strict=False):
            bound[rank] = cores_text(piece)
    return bound


def core_map_of(sharers: Sequence[Resources]) -> CoreMap:
    """Return the map of a host's cores, which its first rank has sent."""
    return next((own.core_map for own in sharers if own.core_map), {})


def divide(cores: _Cores, ranks: int, levels: CoreMap) -> list[_Cores]:
    """Divide cores into equal sets, one per rank, along packages, NUMA nodes and caches if their numbers allow it.

    Whole cores come before hyperthreads. Cores that would make the sets unequal are left over.

    Returns:
        no sets if there are fewer cores than ranks.
    """
    units = _parts(cores, levels.get("core", ()))
    if len(units) < ranks:
        units = [frozenset((core,)) for unit in units for core in sorted(unit)]
    places = [_parts(cores, levels.get(level, ())) for level in LEVELS[:-1]]
    units.sort(key=lambda unit: [next(n for n, part in enumerate(parts) if unit & part) for parts in places])
    return _divided(units, ranks, places, len(units) // ranks) if len(units) >= ranks else []


def whole_cores(cores: str, levels: CoreMap) -> int:
    """Count the physical cores among these, which may be hyperthreads."""
    return len(_parts(frozenset(cores_of(cores)), levels.get("core", ())))


def bind_process(cores: str) -> str:
    """Bind all threads of this process, and those that they start, to these cores, and prefer the memory of their NUMA node.

    Returns:
        why the kernel refuses it, "" if it does not.
    """
    wanted = cores_of(cores)
    try:
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), wanted)
    except OSError as error:
        return f"this rank cannot be bound to cores {cores}: {error.strerror}"
    node = node_of(wanted)
    if node is not None:
        prefer_node(node)
    return ""


def prefer_node(node: int) -> None:
    """Prefer a NUMA node's memory for this thread, and for those that it starts, unless a policy was set before.

    The kernel takes other nodes' memory once this node's is full: MPOL_PREFERRED, never MPOL_BIND (man 2 set_mempolicy).
    """
    numbers = {"x86_64": (238, 239), "aarch64": (237, 236)}  # of set_mempolicy and get_mempolicy
    if platform.machine() not in numbers:
        return
    to_set, to_get = numbers[platform.machine()]
    library, policy = ctypes.CDLL(None), ctypes.c_int(-1)
    if library.syscall(to_get, ctypes.byref(policy), None, 0, None, 0) == 0 and policy.value == 0:
        word = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask = (ctypes.c_ulong * (node // word + 1))()
        mask[node // word] = 1 << (node % word)
        library.syscall(to_set, 1, mask, word * len(mask) + 1)


def _listed(asked: str, host: str, sharers: Sequence[Resources]) -> list[str]:
    lists = asked.split(":")
    if len(lists) < len(sharers):
        raise UsageError(
            f"--bind names cores for {len(lists)} rank{'s' * (len(lists) > 1)}, and host {host} has {len(sharers)}",
            fix="name cores for each rank of a host: --bind 0-3:4-7",
        )
    owners: dict[int, int] = {}
    for rank, own in enumerate(sharers):
        for core in sorted(cores_of(lists[rank])):
            if core in owners:
                raise RefusedError(
                    f"--bind {asked}: core {core} is named for local ranks {owners[core]} and {rank}",
                    fix="give each rank cores of its own",
                )
            if core not in cores_of(own.allowed or own.cores):
                raise RefusedError(
                    f"--bind {asked}: local rank {rank} on host {host} may not use core {core}, only {own.allowed or own.cores}",
                    fix="name cores that the job has been given, or ask for more",
                )
            owners[core] = rank
    return [cores_text(cores_of(cores)) for cores in lists[: len(sharers)]]


def _to_divide(sharers: Sequence[Resources]) -> Iterator[tuple[list[int], _Cores]]:
    """Yield ranks that share cores, and the cores to divide among them."""
    masks = [frozenset(cores_of(own.cores)) for own in sharers]
    allowed = [frozenset(cores_of(own.allowed)) for own in sharers]
    crowded: dict[_Cores, list[int]] = {}  # those with fewer cores than ranks, by the cores that they may use
    for group in _overlapping(masks):
        cores = frozenset().union(*(masks[rank] for rank in group))
        may_use = frozenset.intersection(*(allowed[rank] for rank in group))
        if len(cores) < len(group):
            crowded.setdefault(may_use | cores, []).extend(group)
        elif all(sharers[rank].is_alone for rank in group) and cores <= may_use:
            yield group, cores
    in_need = set().union(*crowded.values())
    others = frozenset().union(*(mask for rank, mask in enumerate(masks) if rank not in in_need))
    for may_use, group in crowded.items():
        yield sorted(group), may_use - others
        others |= may_use


def _overlapping(masks: Sequence[_Cores]) -> Iterator[list[int]]:
    """Yield the ranks of each group that share cores, two or more each."""
    left = list(range(len(masks)))
    while left:
        group = [left.pop(0)]
        cores = set(masks[group[0]])
        while more := [rank for rank in left if masks[rank] & cores]:
            group += more
            cores.update(*(masks[rank] for rank in more))
            left = [rank for rank in left if rank not in more]
        if len(group) > 1:
            yield sorted(group)


def _with_gpus(cores: _Cores, near: Sequence[_Cores], levels: CoreMap) -> _Cores:
    """The cores in the packages of the ranks' GPUs, if these are known for all ranks and have cores enough; else all."""
    gpus = frozenset().union(*near)
    packages = [part for text in levels.get("package", ()) if (part := cores & cores_of(text)) and part & gpus]
    found = frozenset().union(*packages)
    return found if all(near) and len(found) >= len(near) else cores


def _near(own: Resources, gpu: int | None) -> _Cores:
    """The cores near a rank's GPU; none if that is not known."""
    return frozenset(cores_of(own.gpu_cores[gpu])) if gpu is not None and gpu < len(own.gpu_cores) else frozenset()


def _nearest(pieces: Sequence[_Cores], near: Sequence[_Cores], levels: CoreMap) -> list[_Cores]:
    """Return the pieces in the order of the ranks: each gets the piece that shares most with the cores near its GPU.

    If several ranks' GPUs are near the same piece, the others get one of the same NUMA node or package.
    """
    if not pieces:
        return []

    def closeness(rank: int, piece: int) -> list[int]:
        wider = [near[rank]]
        for level in ("node", "package"):
            parts = (frozenset(cores_of(part)) for part in levels.get(level, ()))
            wider.append(frozenset().union(*(part for part in parts if part & near[rank])))
        return [-len(pieces[piece] & cores) for cores in wider]

    found: dict[int, int] = {}
    pairs = itertools.product(range(len(near)), range(len(pieces)))
    for _, rank, piece in sorted((closeness(*pair), *pair) for pair in pairs):
        if rank not in found and piece not in found.values():
            found[rank] = piece
    return [pieces[found[rank]] for rank in range(len(near))]


def _parts(cores: _Cores, level: Sequence[str]) -> list[_Cores]:
    """The cores by the parts of a level, in their order; those that are in no part, one by one."""
    parts = [part for text in level if (part := cores & cores_of(text))]
    rest = cores.difference(*parts)
    return [*parts, *(frozenset((core,)) for core in sorted(rest))]


def _divided(units: Sequence[_Cores], ranks: int, places: Sequence[Sequence[_Cores]], size: int) -> list[_Cores]:
    """Divide units, which are in order, into sets of this size along the parts of the first level that have room for as many ranks each."""
    for number, parts in enumerate(places):
        groups = [group for part in parts if (group := [unit for unit in units if unit <= part])]
        each = ranks // len(groups) if groups else 0
        fits = all(len(group) >= each * size for group in groups)
        if len(groups) > 1 and ranks == each * len(groups) and fits:
            return [piece for group in groups for piece in _divided(group, each, places[number + 1 :], size)]
    return [frozenset().union(*units[n * size : (n + 1) * size]) for n in range(ranks)]
