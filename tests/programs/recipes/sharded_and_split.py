"""FSDP between the hosts and tensor parallelism of 2 within them, on a two-dimensional mesh."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SPLIT = 2

size = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cpu", (size // SPLIT, SPLIT), mesh_dim_names=("shard", "split"))
rank, replica = dist.get_rank(), mesh["shard"].get_local_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
parallelize_module(model, mesh["split"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1 + replica)  # those that share a replica see the same batch
batch = torch.rand(32, 16)
losses = []
for _ in range(20):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch), batch)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
split = mesh["split"].get_local_rank()
print(f"rank {rank}: replica {replica} split {split} falls {losses[-1] < losses[0] / 2}", flush=True)
dist.destroy_process_group()
