"""Rank 1 ends, or leaves its group, before a call for which the others wait: ``leaves_before_a_call.py ends|destroys``."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("mpi4py")
dist.all_reduce(torch.ones(4))
if dist.get_rank() != 1:
    dist.all_reduce(torch.ones(4))
elif sys.argv[1] == "destroys":
    dist.destroy_process_group()
    time.sleep(60)
