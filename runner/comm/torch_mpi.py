"""torch's own MPI backend, in a torch that was built from source with it; mpi4py stands in for it."""

from __future__ import annotations

from runner.comm.backend import Backend


class TorchMPI(Backend):
    name = "mpi"
    is_measured = False  # bench calls the bare MPI by this name
