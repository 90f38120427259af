"""Catches the error of a call to which rank 1 comes too late, and destroys the group while the call is open in MPI."""

import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
dist.barrier()  # a rank may be slow to come here
dist.set_timeout(datetime.timedelta(seconds=1))
if dist.get_rank() == 1:
    time.sleep(4)
try:
    dist.all_reduce(torch.ones(4), async_op=True).wait()
except dist.DistBackendError:
    dist.destroy_process_group()
    print("continued", flush=True)
