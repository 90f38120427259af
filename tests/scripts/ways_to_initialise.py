"""The ways in which torchrun scripts make their process group: env, explicit or own-store."""

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

if sys.argv[1] == "env":
    dist.init_process_group("gloo")
elif sys.argv[1] == "explicit":
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=size)
else:  # a store of the script's own, on a port that rank 0 finds and tells through the launcher's store
    agent = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=30))
    if rank == 0:
        with socket.socket() as probe:
            probe.bind((address, 0))
            agent.set("port", str(probe.getsockname()[1]))
    store = dist.TCPStore(address, int(agent.get("port")), size, is_master=rank == 0, timeout=timedelta(seconds=30))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)

total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
dist.barrier()
print(f"rank {rank}: {total.item():.0f}", flush=True)
dist.destroy_process_group()
