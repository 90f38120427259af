"""Initialises MPI itself, by ``Init``, ``Init_thread``, or only if that has not been done; and finalises it."""

import sys

import mpi4py

assert mpi4py.rc.finalize is None  # as where nobody has imported it

how = sys.argv[1]
if how != "asks":
    mpi4py.rc.initialize = False

from mpi4py import MPI  # noqa: E402

before = MPI.Is_initialized()
if how == "Init" or (how == "asks" and not before):
    MPI.Init()
elif how == "Init_thread":
    assert MPI.Init_thread(MPI.THREAD_FUNNELED) >= MPI.THREAD_FUNNELED
print(how, before, MPI.Is_initialized(), MPI.COMM_WORLD.allreduce(1), flush=True)
MPI.Finalize()
assert MPI.Is_finalized()
