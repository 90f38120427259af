"""Rank 1 raises while the others wait in an allreduce."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == dist.get_world_size() - 1:
    raise ValueError("the loss exploded")
dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1))
