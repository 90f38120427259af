"""The backend mpi4py, made known to torch.distributed as soon as a program imports it, and not before."""

from __future__ import annotations

import sys
from datetime import timedelta
from functools import partial
from typing import Any

from runner.comm.importing import when_imported
from runner.job import Job
from runner.rendezvous.mpi import load_mpi, threads_may_call

NAME = "mpi4py"
_MODULE = "torch.distributed.distributed_c10d"
_NEEDED = (2, 14)  # the first torch that lets Python derive a c10d Backend


def why_not(job: Job) -> str:
    """Why the job cannot use the backend, or an empty string: the same on all ranks. Imports no torch."""
    version = job.topology.records[0]["torch"]
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _NEEDED:
        return f"it needs torch 2.14 or newer, and this is {version or 'none'}"
    if job.endpoint.way != "mpi" and job.size > 1:
        return f"the ranks did not meet by MPI ({job.meeting}); start them with an mpirun"
    if not threads_may_call():
        return "this MPI lets one thread call it at a time (no MPI_THREAD_MULTIPLE)"
    return ""


def register_when_imported(job: Job, replaced: str = "") -> None:
    """Have ``init_process_group("mpi4py")`` work in a program that is yet to import torch.

    Args:
        replaced: another backend whose name shall mean this one.
    """

    when_imported(_MODULE, lambda: register(sys.modules[_MODULE], job, replaced))


def limit_when_imported(job: Job) -> None:
    """Make the time limit that the user asked for the default of the groups that a program makes."""

    def limit() -> None:
        # torch reads these two where init_process_group() and new_group() are given no timeout.
        module, limit = sys.modules[_MODULE], timedelta(seconds=job.collective_timeout)
        vars(module).update(default_pg_timeout=limit, default_pg_nccl_timeout=limit)

    if job.timeout_is_asked_for:
        when_imported(_MODULE, limit)


def register(module: Any, job: Job, replaced: str = "") -> None:
    """Register the backend with ``torch.distributed.distributed_c10d``."""

    def create_as(name: str, options: Any, _: object = None) -> Any:
        problem = why_not(job)
        if problem:
            raise RuntimeError(f"backend mpi4py: {problem}")
        load_mpi(job.context)  # one rank has had nobody to meet by it
        from runner.comm.mpi.creating import create

        crowded = any(placement.is_crowded for placement in job.placements)
        return create(options, name, crowded=crowded)

    for name in filter(None, (NAME, replaced)):
        create = partial(create_as, name)
        module.Backend.register_backend(name, create, extended_api=True, devices=["cpu", "cuda"])
