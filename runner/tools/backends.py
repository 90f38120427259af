"""Which ways to talk a job can use, for tools that compare them."""

from __future__ import annotations

from importlib.util import find_spec

from runner.comm.job import Job
from runner.comm.registering import why_not
from runner.rendezvous.mpi import takes_gpu_memory


def why_unusable(job: Job, name: str) -> str:
    """Why the job cannot use gloo, mpi4py, nccl, horovod or mpi (the bare MPI); an empty string if it can."""
    on_gpu = job.placement.device == "cuda"
    reasons = {
        "gloo": "",
        "nccl": "" if on_gpu else "no GPU is used",
        "mpi4py": why_not(job),
        "mpi": _why_not_bare(job, on_gpu),
        "horovod": "" if find_spec("horovod") else "it is not installed: make horovod",
    }
    return reasons[name]


def _why_not_bare(job: Job, on_gpu: bool) -> str:
    if job.endpoint.way != "mpi":
        return "the ranks did not meet by MPI"
    return "this MPI takes no GPU memory" if on_gpu and not takes_gpu_memory() else ""
