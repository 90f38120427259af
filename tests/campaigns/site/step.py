"""Trains a small network by DDP on the CPU, and prints the median step on rank 0."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS, WARMUP = 150, 30

if __name__ == "__main__":
    dist.init_process_group()
    torch.manual_seed(0)
    layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    samples, labels = torch.randn(256, 512), torch.randint(0, 10, (256,))
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        print(f"step {statistics.median(times[WARMUP:]) * 1000:.2f} ms", flush=True)
    dist.destroy_process_group()
