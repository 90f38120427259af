"""Which backend a workload's process group gets, and what that takes of a rank's cores. Decided once, before torch is imported."""

from __future__ import annotations

from dataclasses import replace

from runner.comm.registering import NAME, why_not
from runner.job import Job
from runner.placement import Placement
from runner.rendezvous.mpi import takes_gpu_memory


def with_backend(job: Job, wanted: str) -> Job:
    """The job with the backend of its process group, and why it is that.

    Args:
        wanted: a backend's name, or "auto".
    """
    backend, why = _chosen(job, wanted)
    return replace(job, backend=backend, backend_why=why)


def with_spare_cores(job: Job) -> Job:
    """The job with a core less per rank for its program where a thread of the backend waits by spinning.

    Where there are more than two. A step of ``workloads.mnist`` with two OpenMP threads on two cores took 29 ms, 93 ms
    beside such a thread; with one OpenMP thread 57 ms and 56 ms.
    """
    if job.backend != NAME:
        return job
    kinds = {placement: _without_a_core(placement, job.backend) for placement in set(job.placements)}
    return replace(job, placements=tuple(kinds[placement] for placement in job.placements))


def network_backend(job: Job) -> str:
    """The one that needs no MPI: what a script that knows nothing of the runner asks for."""
    return "nccl" if job.placement.device == "cuda" else "gloo"


def _chosen(job: Job, wanted: str) -> tuple[str, str]:
    on_gpu, by_mpi = job.placement.device == "cuda", job.endpoint.way == "mpi"
    if wanted == NAME and on_gpu and by_mpi and not takes_gpu_memory():
        return NAME, "as asked for; through pinned memory of the host, as this MPI takes no GPU's"
    if wanted != "auto":
        return wanted, "as asked for"
    if on_gpu:
        return "nccl", "for GPUs"
    if job.size == 1:
        return "gloo", "one rank talks to nobody"
    problem = why_not(job)
    return ("gloo", f"{NAME} is faster, but {problem}") if problem else (NAME, "by the MPI that started the job")


def _without_a_core(placement: Placement, backend: str) -> Placement:
    if placement.threads <= 2 or placement.threads_source == "OMP_NUM_THREADS":
        return placement
    source = f"{placement.threads_source}, less one for {backend}'s thread"
    return replace(placement, threads=placement.threads - 1, threads_source=source)
