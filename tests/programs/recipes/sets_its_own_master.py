"""Reads the MPI launcher's own variables and sets the rendezvous address itself: ``sets_its_own_master.py PORT [ADDRESS]``."""

import os
import sys

import torch
import torch.distributed as dist

NAMES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if "OMPI_COMM_WORLD_RANK" in os.environ
    else ("PMI_RANK", "PMI_SIZE")
)
rank, size = (int(os.environ[name]) for name in NAMES)
os.environ["MASTER_ADDR"] = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
os.environ["MASTER_PORT"] = sys.argv[1]

dist.init_process_group("gloo", rank=rank, world_size=size)
total = torch.tensor(float(rank))
dist.all_reduce(total)
print(f"rank {rank} of {size}: sum {total.item():.0f} at {os.environ['MASTER_PORT']}", flush=True)
dist.destroy_process_group()
