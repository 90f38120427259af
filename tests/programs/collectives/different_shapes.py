"""Rank 1 reduces more elements than the others, or elements of another type."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_odd = dist.get_rank() == 1
elements = 1100 if is_odd and sys.argv[1] == "shape" else 1000
dist.all_reduce(torch.ones(elements, dtype=torch.float64 if is_odd and sys.argv[1] == "type" else torch.float32))
dist.barrier()
