"""Horovod: a library beside torch.distributed, with its own world of ranks and its own operations."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from runner.backends.backend import Backend, Finding
from runner.job import Job
from runner.torchrun.import_hooks import when_imported

if TYPE_CHECKING:
    from runner.backends.connection import Connection

_MODULE = "horovod.torch"


class Horovod(Backend):
    name = "horovod"
    is_process_group = False
    package = "horovod"
    title = "Horovod"
    patience = 15.0

    def unavailable_reason(self, job: Job) -> str:
        """Return why Horovod cannot be used; "" if it can. If the job computes on GPUs this imports Horovod, and torch with it."""
        if without := job.topology.hosts_where("packages", lambda packages: "horovod" not in packages):
            where = f" on {', '.join(without)}" if len(without) < len(job.topology.hosts) else ""
            return f"it is not installed{where}: make horovod"
        if job.placement.device == "cpu":
            return ""
        import horovod.torch as hvd

        from runner.backends.horovod.library import WITHOUT_CUDA

        return "" if hvd.cuda_built() or hvd.rocm_built() else WITHOUT_CUDA

    def prepare(self, job: Job) -> None:
        """Have ``hvd.init()`` find the other ranks."""
        if find_spec("horovod") is None:
            return
        from runner.backends.horovod.rendezvous import finds_ranks_itself, prepare_rendezvous

        if not finds_ranks_itself(job):
            when_imported(_MODULE, lambda: prepare_rendezvous(job))

    def start(self, job: Job) -> Connection:
        from runner.backends.horovod.library import in_turn, start_horovod
        from runner.backends.horovod.operations import HorovodConnection

        hvd = start_horovod(job.size, job.placement.device)
        with in_turn(hvd):  # at the end of the block Horovod stops until its next turn
            return HorovodConnection(hvd)

    def examine(self, job: Job) -> Finding:
        if find_spec("horovod") is None:
            return Finding("not installed")
        try:
            hvd = importlib.import_module(_MODULE)
            built = [name for name in ("mpi", "gloo", "nccl") if getattr(hvd, f"{name}_built")()]
            version = sys.modules["horovod"].__version__
        except Exception as error:  # a missing library, a symbol that this torch does not have
            return Finding("", problem=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return Finding(f"{version}, with {', '.join(built) or 'no controller'}")
