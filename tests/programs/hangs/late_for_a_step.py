"""Rank 1 sleeps while rank 0 waits for it in DDP's part of the backward pass."""

import time

import torch
import torch._dynamo  # as DDP does in the first step, which is to take no time
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
dist.barrier()
if dist.get_rank() == 1:
    time.sleep(3600)
model(torch.ones(2, 4)).sum().backward()
