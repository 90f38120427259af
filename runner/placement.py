"""Which device, how many cores and threads a rank gets, given what the ranks of its host can see."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from runner.control_groups import cpu_quota
from runner.errors import Policy, RefusedError, UsageError
from runner.launch.table import Launcher

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one rank may use, as it sees it itself: plain data, part of its record.

    ``cores`` are the cores it may run on, as Linux lists them (``0-3,8``); ``host_cores`` how many the host has; ``quota`` the CPU time a
    container allows, in cores; ``gpus`` one name per visible GPU, the same name for the same GPU;
    ``user_threads`` what the user's ``OMP_NUM_THREADS`` says.
    """

    cores: str
    host_cores: int
    quota: float | None
    gpus: list[str]
    user_threads: int | None = None

    @cached_property
    def mask(self) -> int:
        """The cores as bits."""
        return sum(1 << core for core in cores_of(self.cores))


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a rank uses."""

    device: str  # cpu, cuda
    device_index: int | None  # among the GPUs that this rank sees
    cores: int
    threads: int
    threads_source: str
    is_crowded: bool = False  # more ranks than cores, where this one runs
    problem: str = ""  # cores that the launcher keeps from this rank
    fix: str = ""  # of the problem

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
    return Resources(
        cores=cores_text(affinity),
        host_cores=min(host_cores, int(allotted)) if allotted.isdecimal() and int(allotted) > 0 else host_cores,
        quota=cpu_quota(),
        gpus=_visible_gpus(environment),
        user_threads=int(threads) if threads.isdecimal() and int(threads) > 0 else None,
    )


def place_host(launcher: Launcher, host: str, sharers: Sequence[Resources], device: str = "auto") -> list[Placement]:
    """The devices, cores and threads of all ranks of a host, in the order of their local ranks.

    Args:
        sharers: the resources of those ranks, in the same order.
        device: one of ``DEVICES``; ``auto`` is a GPU where any rank of the host sees one.

    Raises:
        UsageError: a GPU is asked for and none is visible.
        RefusedError: the host has more ranks than GPUs.
    """
    gpus = _gpu_indices(launcher, host, sharers, device)
    sharing = _sharing(sharers)
    placements = []
    for own, gpu in zip(sharers, gpus, strict=True):
        threads, source = _threads(own, sharing[own.mask], len(sharers))
        problem, fix = _binding_problem(launcher, own, len(sharers))
        placements.append(
            Placement(
                device="cpu" if gpu is None else "cuda",
                device_index=gpu,
                cores=own.mask.bit_count(),
                threads=threads,
                threads_source=source,
                is_crowded=_cores_per_rank(own, sharing[own.mask], len(sharers)) < 1,
                problem=problem,
                fix=fix,
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
    """The placements of all ranks, host by host. All ranks compute all of them, so all raise the same error.

    Hosts whose ranks have the same resources are placed once.

    Args:
        hosts: the name of each and, in the order of local ranks, the index of each rank's resources in ``kinds``.
        kinds: the distinct resources.
        policy: for a diagnostic tool, a host with more ranks than GPUs computes on its CPUs.

    Raises:
        UsageError: a GPU is asked for and none is visible.
        RefusedError: a host has more ranks than GPUs.
    """
    placed: dict[tuple[int, ...], list[Placement]] = {}
    placements = []
    for name, numbers in hosts:
        alike = tuple(numbers)
        if alike not in placed:
            sharers = [kinds[number] for number in alike]
            try:
                placed[alike] = place_host(launcher, name, sharers, device)
            except RefusedError:
                if policy is Policy.STRICT:
                    raise
                placed[alike] = place_host(launcher, name, sharers, "cpu")
        placements.append(placed[alike])
    return placements


def _gpu_indices(launcher: Launcher, host: str, sharers: Sequence[Resources], device: str) -> list[int | None]:
    """For each rank the first GPU it sees that no rank before it has taken, as an index among those it sees.

    This rule fits whether all ranks see all GPUs, each sees its own, or the sets overlap.
    """
    gpus = {gpu for sharer in sharers for gpu in sharer.gpus}
    if device == "cpu" or (device == "auto" and not gpus):
        return [None] * len(sharers)
    if not gpus:
        raise UsageError(
            f"--device {device}: no GPU is visible on host {host}",
            fix="ask the scheduler for GPUs, look at CUDA_VISIBLE_DEVICES, or say --device cpu",
        )
    taken: set[str] = set()
    indices: list[int | None] = []
    for sharer in sharers:
        free = next((gpu for gpu in sharer.gpus if gpu not in taken), None)
        if free is None:
            flag = launcher.ranks_per_host.format(n=len(gpus)) or "fewer ranks"
            raise RefusedError(
                f"{len(sharers)} ranks on host {host} but {len(gpus)} GPU{'s' * (len(gpus) > 1)}",
                fix=f"start {len(gpus)} per host ({flag}), or say --device cpu",
            )
        taken.add(free)
        indices.append(sharer.gpus.index(free))
    return indices


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


def _visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The UUIDs of the GPUs that CUDA will show this process, in CUDA's order.

    ``CUDA_VISIBLE_DEVICES`` chooses by index or by the beginning of a UUID; CUDA stops at the first
    entry that is neither (CUDA programming guide, environment variables).
    """
    gpus = _nvidia_gpus()
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not gpus:
        return gpus
    visible: list[str] = []
    for entry in (entry.strip() for entry in chosen.split(",")):
        if entry.isdecimal() and int(entry) < len(gpus):
            visible.append(gpus[int(entry)])
        elif entry.startswith("MIG-"):
            visible.append(entry)
        elif entry.startswith("GPU-") and any(gpu.startswith(entry) for gpu in gpus):
            visible.append(next(gpu for gpu in gpus if gpu.startswith(entry)))
        else:
            break
    return visible


def _nvidia_gpus() -> list[str]:
    """The UUIDs of the NVIDIA GPUs that this process may open, from the driver, without CUDA or torch."""
    if not os.path.exists("/dev/nvidiactl"):
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # a driver without its library: the device files still count the GPUs
        return sorted(name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name))


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
