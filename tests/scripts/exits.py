"""Ends as its arguments say: RANK and how (a code, "_" and a code for os._exit(), message, kill). The other ranks wait for it for ever, if the third argument says so."""

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
    if how.startswith("_"):
        os._exit(int(how[1:]))
    sys.exit(int(how))
if "wait" in sys.argv:
    MPI.COMM_WORLD.barrier()
