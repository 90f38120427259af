"""The ways in which scripts make their process group, one after the other: ``ways_to_initialise.py WAY…``."""

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
SOON = timedelta(seconds=60)
kept: list[dist.TCPStore] = []


def free_port(name: str) -> int:
    """A port that rank 0 finds and tells through the launcher's store."""
    is_served = os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "False"  # not by the torchrun of torch 2.4
    agent = dist.TCPStore(address, port, is_master=rank == 0 and not is_served, wait_for_workers=False, timeout=SOON)
    kept.append(agent)
    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            agent.set(name, str(probe.getsockname()[1]))
    return int(agent.get(name))


def by_own_store() -> None:
    own = free_port("own store")
    store = dist.TCPStore("127.0.0.1", own, size, is_master=rank == 0, timeout=SOON)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def by_own_master() -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(free_port("own master"))
    dist.init_process_group("gloo", rank=rank, world_size=size)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)


def by_tcp() -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{free_port('tcp')}", rank=rank, world_size=size)


WAYS = {
    "default": dist.init_process_group,
    "env": lambda: dist.init_process_group("gloo"),
    "explicit": lambda: dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=size),
    "rank": lambda: dist.init_process_group("gloo", rank=rank, world_size=size),
    "file": lambda: dist.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/rendezvous-{port}", rank=rank, world_size=size
    ),
    "tcp": by_tcp,
    "own-store": by_own_store,
    "own-master": by_own_master,
}

for way in sys.argv[1:]:
    WAYS[way]()
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    dist.barrier()
    print(f"{way}: rank {rank}: {total.item():.0f}", flush=True)
    dist.destroy_process_group()
