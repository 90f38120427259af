"""Which ways to talk a job can use, for tools that compare them."""

from __future__ import annotations

from collections.abc import Callable

from runner.comm.horovod import why_not_horovod
from runner.comm.registering import why_not
from runner.job import Job
from runner.rendezvous.mpi import takes_gpu_memory


def why_unusable(job: Job, name: str) -> str:
    """Why the job cannot use gloo, mpi4py, nccl, horovod or mpi (the bare MPI); an empty string if it can."""
    device = job.placement.device
    reasons: dict[str, Callable[[], str]] = {
        "gloo": lambda: "",
        "nccl": lambda: "" if device == "cuda" else "no GPU is used",
        "mpi4py": lambda: why_not(job),
        "mpi": lambda: _why_not_bare(job, device),
        "horovod": lambda: why_not_horovod(device),
    }
    return reasons[name]()


def _why_not_bare(job: Job, device: str) -> str:
    if job.endpoint.way != "mpi":
        return "the ranks did not meet by MPI"
    return "this MPI takes no GPU memory" if device == "cuda" and not takes_gpu_memory() else ""
