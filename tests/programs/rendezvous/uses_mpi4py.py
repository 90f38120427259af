"""Uses mpi4py itself, and no torch."""

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
print(f"rank {world.rank} of {world.size}: {total}", flush=True)
