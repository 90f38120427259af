"""One rank ends, the others at once, or never: ``exits.py RANK CODE|_CODE|message|kill [wait]``. _CODE: by os._exit()."""

import os
import sys

if "wait" in sys.argv:
    from mpi4py import MPI

rank, how = sys.argv[1], sys.argv[2]
if os.environ["RANK"] == rank:
    if how == "message":
        sys.exit("nothing to do here")
    if how == "kill":
        print("a line")  # not flushed
        os.kill(os.getpid(), 9)
    if how.startswith("_"):
        os._exit(int(how[1:]))
    sys.exit(int(how))
if "wait" in sys.argv:
    MPI.COMM_WORLD.barrier()
