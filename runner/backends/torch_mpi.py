"""torch's own MPI backend, for a torch that was built from source with MPI; the backend mpi4py replaces it elsewhere."""

from __future__ import annotations

from runner.backends.backend import Backend


class TorchMPI(Backend):
    name = "mpi"
    is_measured = False  # torch's wheels are built without it
