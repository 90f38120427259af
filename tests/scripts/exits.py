"""Ends as its arguments say: RANK and how. The other ranks wait for it for ever, if the third argument says so."""

import os
import sys

if "wait" in sys.argv:
    from mpi4py import MPI

rank, how = sys.argv[1], sys.argv[2]
if os.environ["RANK"] == rank:
    if how == "message":
        sys.exit("nothing to do here")
    if how == "kill":
        os.kill(os.getpid(), 9)
    sys.exit(int(how))
if "wait" in sys.argv:
    MPI.COMM_WORLD.barrier()
