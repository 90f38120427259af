"""Rank 1 reduces more elements than the others."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1000 + 100 * (dist.get_rank() == 1)))
dist.barrier()
