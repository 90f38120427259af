"""The choice of each rank's device, cores and threads, by what the ranks of its host can see."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runner.base.errors import Policy, RefusedError
from runner.hardware.devices import common_device, gpu_indices, gpu_warning
from runner.hardware.resources import Resources
from runner.launch.launchers import Launcher


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The device, cores and threads of a rank."""

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


def place_host(launcher: Launcher, host: str, sharers: Sequence[Resources], device: str = "auto") -> list[Placement]:
    """The devices, cores and threads of all ranks of a host, in the order of their local ranks.

    Args:
        sharers: the resources of those ranks, in the same order.
        device: one of ``DEVICES``; ``auto`` is a GPU where any rank of the host sees one.

    Raises:
        UsageError: a GPU is asked for and none is visible.
        RefusedError: the ranks cannot have a GPU each; or ``auto``, and the scheduler has allotted GPUs of which none can be used.
    """
    used = common_device([(host, sharers)], device)
    gpus = [None] * len(sharers) if used == "cpu" else gpu_indices(launcher, host, sharers)
    warning = gpu_warning(sharers, used) if device != "cpu" else ""
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
                gpu_warning=warning,
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
        used = common_device([(name, [kinds[n] for n in dict.fromkeys(numbers)]) for name, numbers in every], device)
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
    """Count, per core mask, the ranks that have one of its cores: once per mask, not once per rank."""
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
