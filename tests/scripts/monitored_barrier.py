"""A monitored barrier to which ranks 1 and 2 do not come: ``monitored_barrier.py first|all``, as rank 0 is to name them."""

import datetime
import sys
import time

import torch.distributed as dist

dist.init_process_group("mpi4py")
dist.monitored_barrier()
if dist.get_rank() in (1, 2):
    time.sleep(60)
dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=sys.argv[1] == "all")
