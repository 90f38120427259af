"""Rank 1 comes to gloo's barrier long after rank 0."""

import time

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    time.sleep(100)
dist.barrier()
