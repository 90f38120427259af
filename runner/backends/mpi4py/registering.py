"""The backend mpi4py: it is registered with torch.distributed as soon as a program imports that."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from runner.backends.backend import Backend, Finding
from runner.job import Job
from runner.rendezvous.methods.mpi_library import load_mpi, takes_gpu_memory, threads_may_call
from runner.torchrun.import_hooks import when_imported
from runner.torchrun.own_modules import own_module
from runner.versions.features import FEATURES, number_of
from runner.versions.torch_build import release_of
from runner.versions.torch_private import call_backend, make_groups_by, takes_backend_in_python

_MODULE = "torch.distributed.distributed_c10d"
_IN_GLOOS_PLACE = "gloo_by_mpi"  # the name under which torch before 2.14 finds this backend if a script says gloo
_TRIED = (2, 15, True)  # the newest torch with which the tests have run: a subclass depends on what its C++ asks for


class MPI4Py(Backend):
    name = "mpi4py"
    chosen_on = ("cpu",)
    why_chosen = "by the MPI that started the job"
    takes_a_core = True
    package = "mpi4py"
    title = "MPI backend"

    def unavailable_reason(self, job: Job) -> str:
        if lack := FEATURES[self.name].shortfall(_torch_of(job)):
            return f"it {lack}"
        if job.endpoint.way != "mpi" and job.size > 1:
            return f"the ranks did not meet by MPI ({job.rendezvous_why}); start them with an mpirun"
        if job.placement.device == "xpu":
            return "it knows no way to the memory of Intel's GPUs"
        if not threads_may_call():
            return "this MPI lets one thread call it at a time (no MPI_THREAD_MULTIPLE)"
        return ""

    def unproven_reason(self, job: Job) -> str:
        if release_of(_torch_of(job)) > _TRIED:
            return (
                f"not tried with torch {_torch_of(job)} (with {number_of(_TRIED)} it was); take it by --backend mpi4py"
            )
        return ""

    def remark(self, job: Job) -> str:
        if job.placement.device == "cuda" and job.endpoint.way == "mpi" and not takes_gpu_memory():
            return "through pinned memory of the host, as this MPI takes no GPU's"
        return ""

    def prepare(self, job: Job) -> None:
        """Make ``init_process_group("mpi4py")`` work, also for a script that says gloo or mpi, where this serves it."""
        when_imported(_MODULE, lambda: self._register(sys.modules[_MODULE], job))

    def examine(self, job: Job) -> Finding:
        import torch.distributed as dist

        if dist.is_mpi_available():
            return Finding("this torch was built with MPI: --backend mpi")
        if problem := self.unavailable_reason(job):
            return Finding(f"not in this torch; mpi4py does not stand in for it: {problem}")
        return Finding("not in this torch; mpi4py stands in for it on CPUs")

    def _register(self, module: Any, job: Job) -> None:
        """Register the backend with ``torch.distributed.distributed_c10d``."""

        def create_as(name: str, options: Any, _: object = None) -> Any:
            if problem := self.unavailable_reason(job):
                raise RuntimeError(f"backend mpi4py: {problem}")
            load_mpi(job.context)  # a job of one rank has not loaded it for the rendezvous
            crowded = any(placement.is_crowded for placement in job.placements)
            return own_module("runner.backends.mpi4py.creating").create(options, name, crowded=crowded)

        is_older = not takes_backend_in_python()
        served = {self.name: self.name}
        if job.replaces_gloo:
            served["gloo"] = _IN_GLOOS_PLACE if is_older else "gloo"
        for name, registered in served.items():
            create = partial(create_as, name)
            module.Backend.register_backend(registered, create, extended_api=True, devices=["cpu", "cuda"])
        if is_older:
            _serve_names(module, served, self.name)
        if not module.is_mpi_available() and not self.unavailable_reason(job):
            _rename(module.Backend, "mpi", self.name)


def _serve_names(module: Any, served: dict[str, str], own: str) -> None:
    """Before torch 2.14: have torch make a group by the backend that is registered in the place of one of its own.

    Torch looks for its own gloo before it looks for registered backends. Of several backends, torch keeps only the one that is a
    group in Python.
    """

    def make(as_before: Any, size: int, rank: int, ranks: Any, backend: Any, *rest: Any, **named: Any) -> Any:
        asked = module.BackendConfig(module.Backend(str(backend) if backend else "undefined"))
        names = set(map(str, asked.get_device_backend_map().values()))
        if len(names) > 1 and own in names:
            raise RuntimeError(
                f"backend {backend}: torch before 2.14 cannot combine {own} with another; name {own} or the other alone"
            )
        name = names.pop() if len(names) == 1 else ""
        group, store = as_before(size, rank, ranks, served.get(name, backend), *rest, **named)
        if name in served:
            call_backend(group, name)
        return group, store

    make_groups_by(make)


def _rename(names: Any, asked: str, served: str) -> None:
    """Make torch.distributed take one backend's name for another's.

    Registering under the name mpi is not enough: torch gives the backend of that name no store, rank and size.
    """
    as_before = names.__new__

    def renamed(kind: Any, name: Any) -> Any:
        return as_before(kind, served if isinstance(name, str) and name.lower() == asked else name)

    names.__new__ = renamed


def _torch_of(job: Job) -> str:
    """Return torch's version, equal on all ranks; "" without torch."""
    return job.topology.records[0].torch
