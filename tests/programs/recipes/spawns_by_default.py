"""Starts two ranks of its own, twice, which meet where MASTER_ADDR and MASTER_PORT say, or else at ``127.0.0.1:PORT``."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, method: str, port: str) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    total = torch.tensor(float(rank + 1))
    dist.all_reduce(total)
    print(f"{method} {rank}: sum {total.item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        mp.start_processes(train, args=(method, sys.argv[1]), nprocs=2, start_method=method)
