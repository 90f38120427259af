"""Start and stop the default process group, and prepare for a program that makes one itself."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from types import FunctionType

from runner.backends.registry import backends
from runner.base.command_name import COMMAND
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.job import Job
from runner.torchrun.import_hooks import when_imported
from runner.torchrun.store import serve_store
from runner.versions import torch_private

_MODULE = "torch.distributed.distributed_c10d"
_prepared = threading.Event()
_WITH_HOST_MEMORY = {"nccl": "cpu:gloo,cuda:nccl", "xccl": "cpu:gloo,xpu:xccl"}


def prepare_backends(job: Job) -> None:
    """Make all backends work in this process, which may import torch later. The job's store is served already.

    Done once: a script that calls ``runner.start()`` was prepared as scripts are. (Torch 2.4 refuses to register a backend again.)
    """
    if not _prepared.is_set():
        _prepared.set()
        for backend in backends().values():
            backend.prepare(job)


def limit_when_imported(job: Job) -> None:
    """Make the user's ``--collective-timeout``, if given, the default time limit of the groups that a program makes."""

    def limit() -> None:
        # torch reads these two where init_process_group() and new_group() are given no timeout.
        module, limit = sys.modules[_MODULE], timedelta(seconds=job.collective_timeout)
        vars(module).update(default_pg_timeout=limit, default_pg_nccl_timeout=limit)

    if job.timeout_is_asked_for:
        when_imported(_MODULE, limit)


def with_host_memory(backend: str) -> str:
    """A backend of torch.distributed, with another one for tensors in host memory if it takes only those of GPUs."""
    return _WITH_HOST_MEMORY.get(backend, backend)


def start_process_group(job: Job) -> None:
    """Serve the job's store, and initialise torch.distributed's default group for a workload.

    Raises:
        UsageError: the backend asked for is not available, or torch cannot use the GPU.
    """
    import torch
    import torch.distributed as dist

    backend = backends()[job.backend]
    with raised_on_all_ranks():
        if reason := backend.unavailable_reason(job):
            other = "or say --backend gloo" if backend.name != "gloo" else ""
            raise UsageError(f"--backend {backend.name}: {reason}", fix=other)
        serve_store(job)
        prepare_backends(job)
        if not dist.is_backend_available(backend.name):
            raise UsageError(
                f"this torch ({torch.__version__}) was built without {backend.name}", fix="say --backend gloo"
            )
    device = None
    if job.placement.device != "cpu":
        device = torch.device(job.placement.torch_device)
        try:
            torch.get_device_module(device).set_device(device)
        except (RuntimeError, AssertionError) as error:
            raise UsageError(
                f"torch cannot use the GPU {device} of host {job.context.host}: {' '.join(str(error).split())[:200]}",
                fix=f"{COMMAND} doctor says more; --device cpu does without",
            ) from error
    timeout = timedelta(seconds=job.collective_timeout)
    client = torch_private.TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=timeout)
    with backend.starting(job):
        dist.init_process_group(
            backend.name,
            store=torch_private.PrefixStore("runner", client),
            rank=job.rank,
            world_size=job.size,
            timeout=timeout,
            device_id=device if backend.binds_device else None,
        )


def stop_process_group() -> None:
    """Destroy the default group, if there is one. Only after success: after an exception this may wait for ever."""
    if "torch.distributed" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
            _forget_group()


def _forget_group() -> None:
    """Drop torch's own last references to the group, so that its connections close before this process ends.

    The functions of ``torch.distributed.nn.functional``, which DDP imports, have the group at the time of that import as
    a default argument (torch 2.14).
    """
    functions = vars(sys.modules.get("torch.distributed.nn.functional", object))
    for function in [value for value in functions.values() if isinstance(value, FunctionType)]:
        if function.__module__ == "torch.distributed.nn.functional" and function.__defaults__:
            function.__defaults__ = (None,) * len(function.__defaults__)
