"""Which device, how many cores and threads a rank gets, given what the ranks of its host can see."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import RefusedError, UsageError
from runner.launch.table import Launcher

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one rank may use, as it sees it itself; plain data, to be exchanged.

    ``cores`` are the cores it may run on; ``host_cores`` how many the host has; ``quota`` the CPU time a
    container allows, in cores; ``gpus`` one name per visible GPU, the same name for the same GPU;
    ``user_threads`` what the user's ``OMP_NUM_THREADS`` says.
    """

    cores: list[int]
    host_cores: int
    quota: float | None
    gpus: list[str]
    user_threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What a rank uses."""

    device: str  # cpu, cuda
    device_index: int | None  # among the GPUs that this rank sees
    cores: int
    threads: int
    threads_source: str
    is_crowded: bool = False  # more ranks than cores, where this one runs
    warning: str = ""

    @property
    def torch_device(self) -> str:
        return self.device if self.device_index is None else f"{self.device}:{self.device_index}"


def resources(environment: Mapping[str, str]) -> Resources:
    """What this process may use."""
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    # OpenMP allows a list, one number per nesting level.
    threads = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    # In a Slurm job the host is what the job has of it.
    allotted = environment.get("SLURM_CPUS_ON_NODE", "")
    host_cores = os.cpu_count() or len(affinity)
    return Resources(
        cores=affinity,
        host_cores=min(host_cores, int(allotted)) if allotted.isdecimal() and int(allotted) > 0 else host_cores,
        quota=_cpu_quota(),
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
    placements = []
    for own, gpu in zip(sharers, gpus, strict=True):
        threads, source = _threads(own, sharers)
        placements.append(
            Placement(
                device="cpu" if gpu is None else "cuda",
                device_index=gpu,
                cores=len(own.cores),
                threads=threads,
                threads_source=source,
                is_crowded=_cores_per_rank(own, sharers) < 1,
                warning=_binding_warning(launcher, own, sharers),
            )
        )
    return placements


def _gpu_indices(launcher: Launcher, host: str, sharers: Sequence[Resources], device: str) -> list[int | None]:
    """For each rank the first GPU it sees that no rank before it has taken, as an index among those it sees.

    One rule for every way of handing out GPUs: all ranks see all of them, each sees its own, or some of
    them overlap.
    """
    gpus = {gpu for sharer in sharers for gpu in sharer.gpus}
    if device == "cpu" or (device == "auto" and not gpus):
        return [None] * len(sharers)
    if not gpus:
        raise UsageError(
            f"--device {device}: no GPU is visible on host {host}; ask the scheduler for GPUs, look at "
            "CUDA_VISIBLE_DEVICES, or say --device cpu",
            told_by_all=True,
        )
    taken: set[str] = set()
    indices: list[int | None] = []
    for sharer in sharers:
        free = next((gpu for gpu in sharer.gpus if gpu not in taken), None)
        if free is None:
            flag = launcher.ranks_per_host.format(n=len(gpus)) or "fewer ranks"
            raise RefusedError(
                f"{len(sharers)} ranks on host {host} but {len(gpus)} GPU{'s' * (len(gpus) > 1)}; start {len(gpus)} per "
                f"host ({flag}), or say --device cpu",
                told_by_all=True,
            )
        taken.add(free)
        indices.append(sharer.gpus.index(free))
    return indices


def _threads(own: Resources, sharers: Sequence[Resources]) -> tuple[int, str]:
    """Cores that the rank may use ÷ ranks that share them; what the user set goes first."""
    if own.user_threads is not None:
        return own.user_threads, "OMP_NUM_THREADS"
    sharing = _sharing(own, sharers)
    threads = len(own.cores) // sharing
    text = f"{_counted(len(own.cores), 'core')} ÷ {_counted(sharing, 'rank')} on them"
    if own.quota is not None and own.quota / len(sharers) < threads:
        threads = math.floor(own.quota / len(sharers))
        text = f"a container's quota of {own.quota:g} cores ÷ {_counted(len(sharers), 'rank')}"
    return max(1, threads), text


def _sharing(own: Resources, sharers: Sequence[Resources]) -> int:
    return sum(1 for other in sharers if set(other.cores) & set(own.cores))


def _cores_per_rank(own: Resources, sharers: Sequence[Resources]) -> float:
    share = len(own.cores) / _sharing(own, sharers)
    return share if own.quota is None else min(share, own.quota / len(sharers))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _binding_warning(launcher: Launcher, own: Resources, sharers: Sequence[Resources]) -> str:
    """A line where the launcher bound the rank to fewer cores than its share of the host."""
    usable = min(own.host_cores, math.floor(own.quota) if own.quota else own.host_cores)
    fair = usable // len(sharers)
    if not launcher.unbind or len(own.cores) >= fair or fair <= 1:
        return ""
    return (
        f"{launcher.title} bound each rank to {len(own.cores)} of {_counted(own.host_cores, 'core')}, where {len(sharers)} ranks could "
        f"have {fair} each; start with {launcher.unbind.format(cores=fair)}"
    )


def control_groups() -> list[Path]:
    """The folders of this process's control group (version 2) and those above it; none where there is none."""
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
    except OSError:
        return []
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    return [folder, *folder.parents]


def _cpu_quota() -> float | None:
    """The CPU time that control groups allow this process, in cores; None for no limit."""
    limits = []
    for level in control_groups():
        try:
            limit, period = (level / "cpu.max").read_text().split()
            if limit != "max":
                limits.append(int(limit) / int(period))
        except (OSError, ValueError):
            continue
    return min(limits, default=None)


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
    return vars(own).copy()
