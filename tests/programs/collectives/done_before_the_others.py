"""A rank whose part of a gather is done ends, long before the last one has come; all have left an earlier group before."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()

dist.init_process_group("mpi4py")  # torch gives it the same name and keys in the store
for _ in range(3):  # more calls than in the earlier group
    dist.all_reduce(torch.ones(2))
rank = dist.get_rank()
if rank == 2:
    time.sleep(8)
dist.gather(torch.full((2,), float(rank)), [torch.empty(2) for _ in range(3)] if rank == 0 else None)
print("gathered", flush=True)
