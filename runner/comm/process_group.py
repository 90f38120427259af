"""The job's store and default process group."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import FunctionType

from runner.comm.horovod import prepare_when_imported
from runner.comm.keeping import keep
from runner.comm.registering import NAME, register, why_not
from runner.errors import UsageError
from runner.job import Job


def serve_store(job: Job) -> None:
    """On rank 0, make the held socket the job's store, for as long as the process lives."""
    if job.endpoint.listener is None or job.endpoint.way == "torchrun":
        return
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(
        job.endpoint.host,
        job.endpoint.port,
        is_master=True,
        master_listen_fd=job.endpoint.listener.detach(),
        wait_for_workers=False,
        timeout=timedelta(seconds=job.collective_timeout),
    )
    keep(store)


def start_process_group(job: Job) -> None:
    """Serve the job's store, and initialise torch.distributed's default group for a workload.

    Raises:
        UsageError: the backend asked for is not there.
    """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    backend = job.backend
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
    serve_store(job)
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
