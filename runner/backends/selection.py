"""Choose the backend of a workload's process group, and the cores that it takes, once, before torch is imported."""

from __future__ import annotations

from dataclasses import replace

from runner.backends.registry import backends
from runner.hardware.placement import Placement
from runner.job import Job


def with_backend(job: Job, wanted: str) -> Job:
    """The job with the backend of its process group, and the reason for it.

    Args:
        wanted: a backend's name, or "auto".
    """
    backend, why = _chosen(job, wanted)
    return replace(job, backend=backend, backend_why=why)


def with_spare_cores(job: Job) -> Job:
    """The job with one OpenMP thread less per rank, if a thread of the backend waits by spinning.

    Ranks with one or two threads keep them. A step of ``workloads.mnist`` with two OpenMP threads on two cores took 29 ms,
    and 93 ms beside such a spinning thread; with one OpenMP thread 57 ms and 56 ms.
    """
    if not backends()[job.backend].takes_a_core:
        return job
    kinds = {placement: _without_a_core(placement, job.backend) for placement in set(job.placements)}
    return replace(job, placements=tuple(kinds[placement] for placement in job.placements))


def network_backends() -> dict[str, str]:
    """Return, per device type, the backend without MPI for which scripts ask that were not written for the runner."""
    devices = ("cpu", "cuda", "xpu")
    return {device: next(b.name for b in backends().values() if device in b.chosen_on) for device in devices}


def network_backend(job: Job) -> str:
    """The backend that needs no MPI, for the job's device."""
    return network_backends()[job.placement.device]


def _chosen(job: Job, wanted: str) -> tuple[str, str]:
    if wanted != "auto":
        return wanted, "; ".join(filter(None, ["as asked for", backends()[wanted].remark(job)]))
    network, *faster = [b for b in backends().values() if job.placement.device in b.chosen_on]
    problems = []
    for backend in faster if job.size > 1 else ():
        problem = backend.unavailable_reason(job) or backend.unproven_reason(job)
        if not problem:
            return backend.name, backend.why_chosen
        problems.append(f"{backend.name} is faster, but {problem}")
    return network.name, "; ".join(problems) or network.why_chosen


def _without_a_core(placement: Placement, backend: str) -> Placement:
    if placement.threads <= 2 or placement.threads_source == "OMP_NUM_THREADS":
        return placement
    source = f"{placement.threads_source}, less one for {backend}'s thread"
    return replace(placement, threads=placement.threads - 1, threads_source=source)
