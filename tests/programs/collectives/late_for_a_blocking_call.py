"""Rank 1 comes to a blocking call of MPI after rank 0 has given it up."""

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
dist.barrier()  # a rank may be slow to come here
dist.set_timeout(datetime.timedelta(seconds=2))
if dist.get_rank() == 1:
    time.sleep(4)
try:
    dist.all_reduce(torch.ones(1 << 20))
except dist.DistBackendError as error:
    print(str(error)[:33], flush=True)
