"""The choice of each rank's device, cores and threads, by what the ranks of its host can see."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.base.errors import Policy, RefusedError
from runner.hardware.binding import NONE, bind_host, core_map_of, whole_cores
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
    given: str = ""  # the cores that the launcher gave it, as Linux lists them
    bound: str = ""  # the cores to which the runner binds it; "": the launcher's are kept

    @property
    def warning(self) -> str:
        """The problem and its fix in one line, "" where there is none."""
        return f"{self.problem}; {self.fix}" if self.problem else ""

    @property
    def torch_device(self) -> str:
        return self.device if self.device_index is None else f"{self.device}:{self.device_index}"


def place_all(
    launcher: Launcher,
    hosts: Sequence[tuple[str, Sequence[int]]],
    kinds: Sequence[Resources],
    device: str,
    policy: Policy,
    binding: str = NONE,
) -> list[list[Placement]]:
    """The placements of all ranks, host by host. All ranks compute all of them, so all decide, or raise, the same.

    The kind of device is one for all hosts, because the backend follows from it.

    Args:
        hosts: the name of each and, in the order of local ranks, the index of each rank's resources in ``kinds``.
        kinds: the distinct resources.
        device: one of ``DEVICES``; ``auto`` is a GPU where any rank sees one.
        policy: for a diagnostic tool, ranks that would be refused compute on their CPUs.
        binding: a value of --bind.

    Raises:
        UsageError: a GPU is asked for and none is visible, or --bind names too few cores.
        RefusedError: some hosts have GPUs and others none, ranks of a host cannot have a GPU each, the scheduler has
            allotted GPUs of which none can be used, or --bind names a core twice or a forbidden one.
    """

    def placed(used: str, *, warns: bool) -> list[list[Placement]]:
        found: dict[tuple[int, ...], list[Placement]] = {}  # hosts whose ranks have the same resources are placed once
        for name, numbers in hosts:
            if tuple(numbers) not in found:
                sharers = [kinds[n] for n in numbers]
                found[tuple(numbers)] = _place_host(launcher, name, sharers, used, binding, warns=warns)
        return [found[tuple(numbers)] for _, numbers in hosts]

    try:
        used = common_device([(name, [kinds[n] for n in dict.fromkeys(numbers)]) for name, numbers in hosts], device)
        return placed(used, warns=device != "cpu")
    except RefusedError:
        if policy is Policy.STRICT:
            raise
        return placed("cpu", warns=False)


def _place_host(
    launcher: Launcher, host: str, seen: Sequence[Resources], used: str, binding: str, *, warns: bool
) -> list[Placement]:
    """The placements of a host's ranks, in the order of their local ranks.

    Args:
        seen: the resources of those ranks, in the same order.
        used: the kind of device on which all ranks compute.
        binding: a value of --bind.
        warns: whether GPUs that are not used are told of.
    """
    gpus = [None] * len(seen) if used == "cpu" else gpu_indices(launcher, host, seen)
    warning = gpu_warning(seen, used) if warns else ""
    bound = bind_host(binding, host, seen, gpus)
    sharers = [replace(own, cores=cores or own.cores) for own, cores in zip(seen, bound, strict=True)]
    sharing = _sharing(sharers)
    placements = []
    for own, gpu, cores, before in zip(sharers, gpus, bound, seen, strict=True):
        threads, source = _threads(own, sharing[own.mask], len(sharers), whole_cores(cores, core_map_of(seen)))
        problem, fix = ("", "") if cores else _binding_problem(launcher, own, len(sharers))
        share = own.mask.bit_count() / sharing[own.mask]
        placements.append(
            Placement(
                device=used,
                device_index=gpu,
                cores=own.mask.bit_count(),
                threads=threads,
                threads_source=source,
                is_crowded=share < 1 or (own.quota is not None and own.quota < len(sharers)),
                problem=problem,
                fix=fix,
                gpu_warning=warning,
                given=before.cores,
                bound=cores,
            )
        )
    return placements


def _threads(own: Resources, sharing: int, on_host: int, bound: int) -> tuple[int, str]:
    """(threads, their source): cores that the rank may use ÷ ranks that share them, unless the user has set a number.

    Args:
        bound: the physical cores to which the runner binds the rank, 0 if it does not.
    """
    if own.user_threads is not None:
        return own.user_threads, "OMP_NUM_THREADS"
    cores = bound or own.mask.bit_count()
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
