"""Rank 1 broadcasts where rank 0 reduces."""

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
values = torch.ones(4)
if dist.get_rank() == 1:
    dist.broadcast(values, 1)
else:
    dist.all_reduce(values)
