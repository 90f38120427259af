"""A rank whose part of a gather is done ends, long before the last one has come."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
rank = dist.get_rank()
if rank == 2:
    time.sleep(8)
dist.gather(torch.full((2,), float(rank)), [torch.empty(2) for _ in range(3)] if rank == 0 else None)
print("gathered", flush=True)
