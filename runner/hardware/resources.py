"""The cores, threads and GPUs of its host that a process may use, as it sees them itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from runner.hardware.control_groups import cpu_quota
from runner.hardware.gpus import Gpus, device_type, visible_gpus
from runner.versions.torch_build import torch_build


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that one rank may use, as it sees them itself: plain data, part of its record.

    ``cores`` are the cores it may run on, as Linux lists them (``0-3,8``); ``host_cores`` how many the host has; ``quota`` the CPU time a
    container allows, in cores; ``gpus`` one name per visible GPU, the same name for the same GPU; ``gpu_device`` torch's
    device type for them; the other fields of GPUs are those of ``runner.hardware.gpus.Gpus``;
    ``user_threads`` what the user's ``OMP_NUM_THREADS`` says. A field that is missing in another version's record has its default.
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

    @cached_property
    def mask(self) -> int:
        """The cores as bits."""
        return sum(1 << core for core in cores_of(self.cores))


def resources(environment: Mapping[str, str], *, asks_for_gpus: bool = True) -> Resources:
    """Return the cores, threads and GPUs that this process may use.

    Args:
        asks_for_gpus: False where none is to be used: then no driver is asked, which may hang.
    """
    affinity = os.sched_getaffinity(0)
    # OpenMP allows a list, one number per nesting level.
    threads = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    # In a Slurm job only the job's share of the host counts.
    allotted = environment.get("SLURM_CPUS_ON_NODE", "")
    host_cores = os.cpu_count() or len(affinity)
    torch = torch_build()
    gpus = visible_gpus(environment, torch) if asks_for_gpus else Gpus(names=[])
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


def of_record(record: Mapping[str, Any]) -> Resources:
    """The resources that a rank has sent; what only another version knows is left out."""
    known = {each.name for each in fields(Resources)}
    return Resources(**{name: value for name, value in record.items() if name in known})


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
