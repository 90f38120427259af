"""The cores, threads and GPUs of its host that a process may use, as it sees them itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from runner.hardware import nvml
from runner.hardware.control_groups import confined_to_cores, cpu_quota
from runner.hardware.core_map import core_map, cores_of, cores_text
from runner.hardware.gpus import Gpus, device_type, visible_gpus
from runner.launch.launchers import SCHEDULER_JOBS
from runner.versions.torch_build import torch_build


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that one rank may use, as it sees them itself: plain data, part of its record.

    ``cores`` are the cores it may run on, as Linux lists them (``0-3,8``); ``host_cores`` how many the host has; ``quota`` the CPU time a
    container allows, in cores; ``gpus`` one name per visible GPU, the same name for the same GPU; ``gpu_device`` torch's
    device type for them; the other fields of GPUs are those of ``runner.hardware.gpus.Gpus``;
    ``user_threads`` what the user's ``OMP_NUM_THREADS`` says. A field that is missing in another version's record has its default.

    For binding: ``allowed`` are the cores that control groups, the launcher's own binding and the scheduler allow; ``is_alone`` says
    whether no other job uses them; ``core_map`` is the host's, of its first rank only; ``gpu_cores`` are the cores near each GPU,
    "" if unknown.
    """

    cores: str = "0"
    host_cores: int = 1
    quota: float | None = None
    gpus: list[str] = field(default_factory=list)
    gpu_device: str = "cuda"
    gpu_problem: str = ""
    gpus_allotted: str = ""
    gpu_mask: str = ""
    gpus_hidden: bool = False
    user_threads: int | None = None
    allowed: str = ""
    is_alone: bool = False
    core_map: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gpu_cores: list[str] = field(default_factory=list)

    @cached_property
    def mask(self) -> int:
        """The cores as bits."""
        return sum(1 << core for core in cores_of(self.cores))


def resources(
    environment: Mapping[str, str],
    *,
    asks_for_gpus: bool = True,
    launched_by: int = 0,
    shares_host: bool = False,
    maps_cores: bool = False,
) -> Resources:
    """Return the cores, threads and GPUs that this process may use.

    Args:
        asks_for_gpus: False where none is to be used: then no driver is asked, which may hang.
        launched_by: the launcher's process on this host, for a rank that may be bound; 0 for one that is not.
        shares_host: whether other ranks may be bound on this host, so that the cores near its GPUs count.
        maps_cores: whether this rank, the first of its host, tells the others where the cores are.
    """
    affinity = os.sched_getaffinity(0)
    # OpenMP allows a list, one number per nesting level.
    threads = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    # In a Slurm job only the job's share of the host counts.
    text = environment.get("SLURM_CPUS_ON_NODE", "")
    allotted = int(text) if text.isdecimal() else 0
    host_cores = os.cpu_count() or len(affinity)
    allowed = _allowed(affinity, launched_by)
    if 0 < allotted < len(allowed):  # the job has a part of them, and nothing says which
        allowed = affinity
    in_job = any(environment.get(name) for name in SCHEDULER_JOBS)
    torch = torch_build()
    gpus = visible_gpus(environment, torch) if asks_for_gpus else Gpus(names=[])
    return Resources(
        cores=cores_text(affinity),
        host_cores=min(host_cores, allotted) if allotted else host_cores,
        quota=cpu_quota(),
        gpus=gpus.names,
        gpu_device=device_type(torch),
        gpu_problem=gpus.problem,
        gpus_allotted=gpus.allotted,
        gpu_mask=gpus.mask,
        gpus_hidden=gpus.hidden,
        user_threads=int(threads) if threads.isdecimal() and int(threads) > 0 else None,
        allowed=cores_text(allowed),
        is_alone=len(allowed) <= allotted or (not allotted and in_job and confined_to_cores()),
        core_map=core_map() if maps_cores else {},
        gpu_cores=nvml.near_cores(gpus.names) if shares_host else [],
    )


def _allowed(affinity: set[int], launched_by: int) -> set[int]:
    """Return the cores that a rank may use: those of its launcher's process, as far as its control group allows them.

    The launcher's process has the cores that a user or an outer job has left it (taskset, a step of srun).
    """
    try:
        wider = os.sched_getaffinity(launched_by) if launched_by else affinity
        os.sched_setaffinity(0, wider | affinity)
        try:
            return os.sched_getaffinity(0)
        finally:
            os.sched_setaffinity(0, affinity)
    except OSError:  # that process is not seen from here, or the kernel refuses it
        return affinity


def of_record(record: Mapping[str, Any]) -> Resources:
    """The resources that a rank has sent; what only another version knows is left out."""
    known = {each.name for each in fields(Resources)}
    return Resources(**{name: value for name, value in record.items() if name in known})
