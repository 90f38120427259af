"""The backends, by the name a user types. Others come from packages with an entry point ``runner.backends``.

To add one, write a file or a folder beside this one with a subclass of ``Backend``, and add an object of it here.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec

from runner.backends.backend import Backend
from runner.backends.gloo import Gloo
from runner.backends.horovod.backend import Horovod
from runner.backends.mpi4py.registering import MPI4Py
from runner.backends.nccl import NCCL
from runner.backends.torch_mpi import TorchMPI
from runner.backends.xccl import XCCL
from runner.base.extensions import extensions, load_extension

_BACKENDS: tuple[Backend, ...] = (Gloo(), MPI4Py(), Horovod(), NCCL(), XCCL(), TorchMPI())


@functools.cache
def backends() -> dict[str, Backend]:
    """All backends by name, including those of other packages.

    Raises:
        UsageError: one of another package cannot be loaded.
    """
    others = [load_extension(point, "backend", Backend, lambda made: made()) for point in extensions("runner.backends")]
    return {backend.name: backend for backend in (*_BACKENDS, *others)}


def installed_packages() -> list[str]:
    """Return the backends' packages that this process can import."""
    packages = {backend.package for backend in backends().values()} - {""}
    return sorted(package for package in packages if find_spec(package) is not None)


def process_groups() -> list[str]:
    """The names of the backends with which torch.distributed makes groups."""
    return [name for name, backend in backends().items() if backend.is_process_group]
