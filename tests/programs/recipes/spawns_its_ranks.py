"""Starts two ranks of its own by ``torch.multiprocessing.spawn``, which meet at ``127.0.0.1:PORT``.

``spawns_its_ranks.py PORT``. Each process of the launcher that runs it does so for itself, at PORT plus its own
number under that launcher, and prints the sums of its own two.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def train(rank: int, port: int) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    total = torch.tensor(float(rank + 1))
    dist.all_reduce(total)
    print(f"spawned {rank} of {RANKS} at {port}: sum {total.item():.0f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    own = next((os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), "0")
    mp.spawn(train, args=(int(sys.argv[1]) + int(own),), nprocs=RANKS)
