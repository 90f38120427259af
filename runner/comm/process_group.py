"""The job's store and default process group."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING

from runner.comm.horovod import prepare_when_imported
from runner.comm.job import Job
from runner.comm.registering import NAME, register, why_not
from runner.errors import UsageError
from runner.rendezvous.mpi_library import takes_gpu_memory

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


def serve_store(job: Job) -> TCPStore | None:
    """On rank 0, make the held socket the job's store; keep what is returned for as long as it is needed."""
    if job.endpoint.listener is None or job.endpoint.way == "torchrun":
        return None
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(
        job.endpoint.host,
        job.endpoint.port,
        is_master=True,
        master_listen_fd=job.endpoint.listener.detach(),
        wait_for_workers=False,
        timeout=timedelta(seconds=job.collective_timeout),
    )


def backend_for(job: Job) -> tuple[str, str]:
    """(the backend of a workload's group, why it is that). Imports no torch."""
    on_gpu, by_mpi = job.placement.device == "cuda", job.endpoint.way == "mpi"
    if job.backend == NAME and on_gpu and by_mpi and not takes_gpu_memory():
        return NAME, "as asked for; through pinned memory of the host, as this MPI takes no GPU's"
    if job.backend != "auto":
        return job.backend, "as asked for"
    if on_gpu:
        return "nccl", "for GPUs"
    if job.size == 1:
        return "gloo", "one rank talks to nobody"
    problem = why_not(job)
    return ("gloo", f"{NAME} is faster, but {problem}") if problem else (NAME, "by the MPI that started the job")


def network_backend(job: Job) -> str:
    """The one that needs no MPI: what a script that knows nothing of the runner asks for."""
    return "nccl" if job.placement.device == "cuda" else "gloo"


def start_process_group(job: Job) -> TCPStore | None:
    """Initialise torch.distributed's default group for a workload. Returns the store to keep.

    Raises:
        UsageError: the backend asked for is not there.
    """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    backend, _ = backend_for(job)
    if backend == "nccl" and job.placement.device != "cuda":
        raise UsageError("--backend nccl needs GPUs; say --backend gloo, or run where GPUs are", told_by_all=True)
    if backend == NAME and why_not(job):
        raise UsageError(f"--backend mpi4py: {why_not(job)}; or say --backend gloo", told_by_all=True)
    if backend != NAME and not dist.is_backend_available(backend):
        raise UsageError(
            f"this torch ({torch.__version__}) was built without {backend}; say --backend gloo", told_by_all=True
        )
    register(dist.distributed_c10d, job)
    device = None
    if job.placement.device == "cuda":
        device = torch.device(job.placement.torch_device)
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=job.collective_timeout)
    store = serve_store(job)
    prepare_when_imported(job)  # which asks the store, at once if the workload has imported Horovod
    client = TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=timeout)
    dist.init_process_group(
        backend,
        store=PrefixStore("runner", client),
        rank=job.rank,
        world_size=job.size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )
    return store


def stop_process_group() -> None:
    """Destroy the default group if there is one. For success only: after an exception it may wait for ever."""
    if "torch.distributed" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
            _forget_group()


def _forget_group() -> None:
    """Drop torch's own last references to the group, so that its connections close while this process goes on.

    The functions of ``torch.distributed.nn.functional`` have the group of the moment of their import, which DDP brings
    about, as their arguments' default (torch 2.14).
    """
    functions = vars(sys.modules.get("torch.distributed.nn.functional", object))
    for function in [value for value in functions.values() if isinstance(value, FunctionType)]:
        if function.__module__ == "torch.distributed.nn.functional" and function.__defaults__:
            function.__defaults__ = (None,) * len(function.__defaults__)
