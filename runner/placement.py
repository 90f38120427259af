"""Which device, how many cores and threads a rank gets, given what the ranks of its host can see."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from runner.control_groups import cpu_quota
from runner.errors import Policy, RefusedError, UsageError
from runner.gpus import device_type, visible_gpus
from runner.launch.table import Launcher
from runner.torch_build import torch_build

DEVICES = ("auto", "cpu", "cuda", "xpu")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one rank may use, as it sees it itself: plain data, part of its record.

    ``cores`` are the cores it may run on, as Linux lists them (``0-3,8``); ``host_cores`` how many the host has; ``quota`` the CPU time a
    container allows, in cores; ``gpus`` one name per visible GPU, the same name for the same GPU; ``gpu_device`` torch's
    device type for them; the other fields of GPUs are those of ``runner.gpus.Gpus``;
    ``user_threads`` what the user's ``OMP_NUM_THREADS`` says.
    """

    cores: str
    host_cores: int
    quota: float | None
    gpus: list[str]
    gpu_device: str = "cuda"
    gpu_problem: str = ""
    gpus_allotted: str = ""
    gpu_mask: str = ""
    gpus_hidden: bool = False
    user_threads: int | None = None

    @cached_property
    def mask(self) -> int:
        """The cores as bits."""
        return sum(1 << core for core in cores_of(self.cores))


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a rank uses."""

    device: str  # cpu, cuda, xpu
    device_index: int | None  # among the GPUs that this rank sees
    cores: int
    threads: int
    threads_source: str
    is_crowded: bool = False  # more ranks than cores, where this one runs
    problem: str = ""  # cores that the launcher keeps from this rank
    fix: str = ""  # of the problem
    gpu_warning: str = ""  # GPUs of this host that are promised or broken, and not used

    @property
    def warning(self) -> str:
        """The problem and its fix in one line, "" where there is none."""
        return f"{self.problem}; {self.fix}" if self.problem else ""

    @property
    def torch_device(self) -> str:
        return self.device if self.device_index is None else f"{self.device}:{self.device_index}"


def resources(environment: Mapping[str, str]) -> Resources:
    """What this process may use."""
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    # OpenMP allows a list, one number per nesting level.
    threads = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    # In a Slurm job only the job's share of the host counts.
    allotted = environment.get("SLURM_CPUS_ON_NODE", "")
    host_cores = os.cpu_count() or len(affinity)
    torch = torch_build()
    gpus = visible_gpus(environment, torch)
    return Resources(
        cores=cores_text(affinity),
        host_cores=min(host_cores, int(allotted)) if allotted.isdecimal() and int(allotted) > 0 else host_cores,
        quota=cpu_quota(),
        gpus=gpus.names,
        gpu_device=device_type(torch),
        gpu_problem=gpus.problem,
        gpus_allotted=gpus.allotted,
        gpu_mask=gpus.mask,
        gpus_hidden=gpus.hidden,
        user_threads=int(threads) if threads.isdecimal() and int(threads) > 0 else None,
    )


def place_host(launcher: Launcher, host: str, sharers: Sequence[Resources], device: str = "auto") -> list[Placement]:
    """The devices, cores and threads of all ranks of a host, in the order of their local ranks.

    Args:
        sharers: the resources of those ranks, in the same order.
        device: one of ``DEVICES``; ``auto`` is a GPU where any rank of the host sees one.

    Raises:
        UsageError: a GPU is asked for and none is visible.
        RefusedError: the ranks cannot have a GPU each; or ``auto``, and the scheduler has allotted GPUs of which none can be used.
    """
    used = _common_device([(host, sharers)], device)
    gpus = [None] * len(sharers) if used == "cpu" else _gpu_indices(launcher, host, sharers)
    gpu_warning = _gpu_warning(sharers, used) if device != "cpu" else ""
    sharing = _sharing(sharers)
    placements = []
    for own, gpu in zip(sharers, gpus, strict=True):
        threads, source = _threads(own, sharing[own.mask], len(sharers))
        problem, fix = _binding_problem(launcher, own, len(sharers))
        placements.append(
            Placement(
                device=used,
                device_index=gpu,
                cores=own.mask.bit_count(),
                threads=threads,
                threads_source=source,
                is_crowded=_cores_per_rank(own, sharing[own.mask], len(sharers)) < 1,
                problem=problem,
                fix=fix,
                gpu_warning=gpu_warning,
            )
        )
    return placements


def place_all(
    launcher: Launcher,
    hosts: Iterable[tuple[str, Sequence[int]]],
    kinds: Sequence[Resources],
    device: str,
    policy: Policy,
) -> list[list[Placement]]:
    """The placements of all ranks, host by host. All ranks compute all of them, so all decide, or raise, the same.

    The kind of device is one for all hosts, as the backend follows from it. Hosts whose ranks have the same resources are
    placed once.

    Args:
        hosts: the name of each and, in the order of local ranks, the index of each rank's resources in ``kinds``.
        kinds: the distinct resources.
        policy: for a diagnostic tool, ranks that would be refused compute on their CPUs.

    Raises:
        UsageError: a GPU is asked for and none is visible.
        RefusedError: some hosts have GPUs and others none, ranks of a host cannot have a GPU each, or the scheduler has
            allotted GPUs of which none can be used.
    """
    every = list(hosts)
    try:
        used = _common_device([(name, [kinds[n] for n in dict.fromkeys(numbers)]) for name, numbers in every], device)
        return _place_all(launcher, every, kinds, device if used == "cpu" else used)
    except RefusedError:
        if policy is Policy.STRICT:
            raise
        return _place_all(launcher, every, kinds, "cpu")


def _place_all(
    launcher: Launcher, hosts: Sequence[tuple[str, Sequence[int]]], kinds: Sequence[Resources], device: str
) -> list[list[Placement]]:
    placed: dict[tuple[int, ...], list[Placement]] = {}
    for name, numbers in hosts:
        if tuple(numbers) not in placed:
            placed[tuple(numbers)] = place_host(launcher, name, [kinds[number] for number in numbers], device)
    return [placed[tuple(numbers)] for _, numbers in hosts]


def _common_device(hosts: Sequence[tuple[str, Sequence[Resources]]], device: str) -> str:
    """The kind of device on which all ranks compute.

    Args:
        hosts: the name of each, and its ranks' resources.
        device: one of ``DEVICES``.

    Raises:
        UsageError: a GPU is asked for, and on some host none is visible.
        RefusedError: ``auto``, and hosts differ; or none has a GPU, and the scheduler has allotted some.
    """
    if device == "cpu":
        return device
    by_device: dict[str, list[str]] = {}  # the names of the hosts
    for name, sharers in hosts:
        seen = next((own.gpu_device for own in sharers if own.gpus), "cpu")
        by_device.setdefault(seen, []).append(name)
    without = [(name, sharers) for name, sharers in hosts if not any(own.gpus for own in sharers)]
    reason = next((why for _, sharers in without if (why := _why_none(sharers))), "")
    if device != "auto":
        lacking = [name for seen, names in by_device.items() if seen != device for name in names]
        if lacking:
            raise UsageError(
                f"--device {device}: no GPU is visible on host{'s' * (len(lacking) > 1)} {_listed(lacking)}"
                + (f" ({reason})" if reason else ""),
                fix="ask the scheduler for GPUs, look at CUDA_VISIBLE_DEVICES, or say --device cpu",
            )
        return device
    if len(by_device) > 1:
        shown = [
            f"{seen} on {_listed(names)}"
            for seen, names in sorted(by_device.items(), key=lambda item: item[0] == "cpu")
        ]
        raise RefusedError(
            f"the ranks would compute on {', but '.join(shown)}, where no GPU is visible{f' ({reason})' if reason else ''}",
            fix="look at those hosts (python -m runner doctor), leave them out, or say --device cpu",
        )
    (used,) = by_device
    for name, sharers in without:
        allotted = next((own for own in sharers if own.gpus_allotted and not own.gpus_hidden), None)
        if allotted is not None:
            raise RefusedError(
                f"the scheduler has allotted GPUs to host {name} ({allotted.gpus_allotted}), and none can be used: "
                f"{allotted.gpu_problem or 'no driver shows one'}",
                fix="look at nvidia-smi or rocm-smi there (a container wants --nv, --rocm or --gpus all), or say --device cpu",
            )
    return used


def _why_none(sharers: Sequence[Resources]) -> str:
    """Why ranks of a host see no GPU, as far as it is known."""
    known = (own.gpu_problem or (own.gpu_mask if own.gpus_hidden else "") for own in sharers if not own.gpus)
    return next(filter(None, known), "")


def _gpu_warning(sharers: Sequence[Resources], used: str) -> str:
    """What is to be said, once for a host, of GPUs that its ranks do not use though nobody has said --device cpu."""
    for own in sharers:
        problem = own.gpu_problem
        if used != "cpu":
            text = problem
        elif own.gpus_hidden:
            text = own.gpus_allotted and f"{own.gpus_allotted} allots GPUs, and {own.gpu_mask} hides them"
        elif own.gpu_mask and own.gpu_mask not in problem:
            text = f"{own.gpu_mask} chooses GPUs, and none can be used: {problem or 'no driver shows one'}"
        else:
            text = problem
        if text:
            return text if used != "cpu" else f"{text}; computing on CPUs, as --device cpu would without this line"
    return ""


def _listed(names: Sequence[str], most: int = 4) -> str:
    """``host1, host2, host3, host4 and 5 more``"""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _gpu_indices(launcher: Launcher, host: str, sharers: Sequence[Resources]) -> list[int | None]:
    """For each rank a GPU of its own, as an index among those that it sees: the first that is free, if that is possible.

    This fits whether all ranks see all GPUs, each sees its own, or the sets overlap.
    """
    owners: dict[str, int] = {}  # GPU: local rank
    for rank, own in enumerate(sharers):
        if not own.gpus:
            raise RefusedError(
                f"local rank {rank} on host {host} sees no GPU, and others there do"
                + (f" ({why})" if (why := _why_none([own])) else ""),
                fix="let each rank see a GPU (look at CUDA_VISIBLE_DEVICES, and at --gpu-bind), or say --device cpu",
            )
        if not _take(rank, sharers, owners, set()):
            raise _no_gpu_left(launcher, host, sharers)
    gpus = {rank: gpu for gpu, rank in owners.items()}
    return [own.gpus.index(gpus[rank]) for rank, own in enumerate(sharers)]


def _take(rank: int, sharers: Sequence[Resources], owners: dict[str, int], tried: set[str]) -> bool:
    """Give a rank a free GPU, or one whose owner can take another (augmenting paths, as in bipartite matching)."""
    gpus = sharers[rank].gpus
    for gpu in (*(gpu for gpu in gpus if gpu not in owners), *gpus):
        if gpu not in tried:
            tried.add(gpu)
            if gpu not in owners or _take(owners[gpu], sharers, owners, tried):
                owners[gpu] = rank
                return True
    return False


def _no_gpu_left(launcher: Launcher, host: str, sharers: Sequence[Resources]) -> RefusedError:
    gpus = sorted({gpu for own in sharers for gpu in own.gpus})
    problem = next((f" ({own.gpu_problem})" for own in sharers if own.gpu_problem), "")
    text = f"{len(sharers)} ranks on host {host} but {_counted(len(gpus), 'GPU')}{problem}"
    flag = launcher.ranks_per_host.format(n=len(gpus)) or "fewer ranks"
    fix = f"start {len(gpus)} per host ({flag}), or say --device cpu"
    if len(gpus) >= len(sharers):
        text = f"the {len(sharers)} ranks on host {host} cannot have a GPU each: some see only one that others see, too"
        fix = "let each see its own, or all of them (--gpus-per-node and --gpu-bind=none), or say --device cpu"
    elif any(gpu.startswith("MIG-") for gpu in gpus):
        text += ": CUDA shows a process one MIG instance, the first"
        fix = f"give each rank one of its own (CUDA_VISIBLE_DEVICES=MIG-…), {fix}"
    return RefusedError(text, fix=fix)


def _threads(own: Resources, sharing: int, on_host: int) -> tuple[int, str]:
    """(threads, their source): cores that the rank may use ÷ ranks that share them, unless the user has set a number."""
    if own.user_threads is not None:
        return own.user_threads, "OMP_NUM_THREADS"
    cores = own.mask.bit_count()
    threads = cores // sharing
    text = f"{_counted(cores, 'core')} ÷ {_counted(sharing, 'rank')} on them"
    if own.quota is not None and own.quota / on_host < threads:
        threads = math.floor(own.quota / on_host)
        text = f"a container's quota of {own.quota:g} cores ÷ {_counted(on_host, 'rank')}"
    return max(1, threads), text


def _sharing(sharers: Sequence[Resources]) -> dict[int, int]:
    """For each core mask, how many ranks have a core of it: computed once per mask, not once per rank."""
    ranks = Counter(sharer.mask for sharer in sharers)
    return {own: sum(count for other, count in ranks.items() if other & own) for own in ranks}


def _cores_per_rank(own: Resources, sharing: int, on_host: int) -> float:
    share = own.mask.bit_count() / sharing
    return share if own.quota is None else min(share, own.quota / on_host)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _binding_problem(launcher: Launcher, own: Resources, on_host: int) -> tuple[str, str]:
    """(problem, fix) where the launcher bound the rank to fewer cores than its share of the host."""
    usable = min(own.host_cores, math.floor(own.quota) if own.quota else own.host_cores)
    fair = usable // on_host
    cores = own.mask.bit_count()
    if not launcher.unbind or cores >= fair or fair <= 1:
        return "", ""
    return (
        f"{launcher.title} bound each rank to {cores} of {_counted(own.host_cores, 'core')}, where {on_host} ranks could "
        f"have {fair} each",
        f"start with {launcher.unbind.format(cores=fair)}",
    )


def as_record(own: Resources) -> dict[str, Any]:
    """The resources as plain data."""
    return {field.name: getattr(own, field.name) for field in fields(own)}


def cores_text(cores: Iterable[int]) -> str:
    """``[0, 1, 2, 8]`` → ``0-2,8``, as Linux writes it (man 7 cpuset, List format)."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)


def cores_of(text: str) -> set[int]:
    """``0-2,8`` → ``{0, 1, 2, 8}``."""
    ends = [run.partition("-")[::2] for run in text.split(",") if run]
    return {core for first, last in ends for core in range(int(first), int(last or first) + 1)}
