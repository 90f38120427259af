"""Imports torch, joins the group, and prints when the first step of a small model is done."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    model(torch.randn(8, 64)).sum().backward()
    print(f"first step at {time.time():.3f}", flush=True)
    dist.destroy_process_group()
