"""Prints whether the MPI takes GPU memory."""

from mpi4py import MPI  # noqa: F401  (loads the library that is asked)

from runner.rendezvous.methods.mpi_library import takes_gpu_memory

print(takes_gpu_memory())
