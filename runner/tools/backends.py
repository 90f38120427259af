"""Which ways to talk a job can use, for tools that compare them."""

from __future__ import annotations

from importlib.util import find_spec

from runner.comm.job import Job
from runner.comm.registering import why_not

ON_CPU = "it takes CPU tensors, and this job computes on GPUs"


def why_unusable(job: Job, name: str) -> str:
    """Why the job cannot use gloo, mpi4py, nccl, horovod or mpi (the bare MPI); an empty string if it can."""
    on_gpu = job.placement.device == "cuda"
    reasons = {
        "gloo": "",
        "nccl": "" if on_gpu else "no GPU is used",
        "mpi4py": why_not(job) or (ON_CPU if on_gpu else ""),
        "mpi": "the ranks did not meet by MPI" if job.endpoint.way != "mpi" else (ON_CPU if on_gpu else ""),
        "horovod": "" if find_spec("horovod") else "it is not installed: make horovod",
    }
    return reasons[name]
