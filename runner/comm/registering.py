"""The backend mpi4py, made known to torch.distributed as soon as a program imports it, and not before."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from runner.comm.job import Job
from runner.rendezvous.mpi import load_mpi

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
    return ""


def register_when_imported(job: Job, replaced: str = "") -> None:
    """Have ``init_process_group("mpi4py")`` work in a program that is yet to import torch.

    Args:
        replaced: another backend whose name shall mean this one.
    """

    def call() -> None:
        register(sys.modules[_MODULE], job, replaced)

    if _MODULE in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(call))


def register(module: Any, job: Job, replaced: str = "") -> None:
    """Register the backend for CPU tensors with ``torch.distributed.distributed_c10d``."""

    def create(options: Any, _: object = None) -> Any:
        problem = why_not(job)
        if problem:
            raise RuntimeError(f"backend mpi4py: {problem}")
        load_mpi(job.context)  # one rank has had nobody to meet by it
        from runner.comm.mpi_backend import create_backend

        return create_backend(options, job.context.label)

    for name in filter(None, (NAME, replaced)):
        module.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, once, in the usual way, and calls at the end of its import."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._call)
        return spec


class _CallingLoader(importlib.abc.Loader):
    """Another loader, and a call at the end of what it does."""

    def __init__(self, loader: importlib.abc.Loader, call: Callable[[], None]) -> None:
        self._loader, self._call = loader, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # get_source and its kin, which tracebacks and inspect ask for

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._call()
