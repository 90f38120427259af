"""PyTorch's ways to be parallel, on the backend named: each trains a step, and the result is that of one process."""

import copy
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from runner.versions.torch_build import release_of

dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).double()
batch = torch.randn(4 * size, 8, dtype=torch.float64)
own = batch[4 * rank : 4 * (rank + 1)]


def step(module, data):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(data).square().mean().backward()
    optimizer.step()
    return module


def full(parameter):
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def same(module, what, tolerance=1e-12):
    wanted = step(copy.deepcopy(model), batch)
    for found, right in zip(module.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(full(found).detach(), right.detach(), rtol=tolerance, atol=tolerance, msg=what)
    print(f"rank {rank}: {what}", flush=True)


same(step(DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.0001), own).module, "ddp")
hooked = DistributedDataParallel(copy.deepcopy(model))
hooked.register_comm_hook(None, bf16_compress_hook)
same(step(hooked, own).module, "ddp with a hook", 1e-2)

sharded = copy.deepcopy(model)
for layer in (sharded[0], sharded[2]):
    fully_shard(layer, mesh=mesh)
same(step(fully_shard(sharded, mesh=mesh), own), "fsdp2")

plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
same(step(parallelize_module(copy.deepcopy(model), mesh, plan), batch), "tensor parallel")

split = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0)])
torch.testing.assert_close(split.redistribute(placements=[Shard(1)]).full_tensor(), torch.arange(16.0).reshape(4, 4))
print(f"rank {rank}: dtensor", flush=True)

folder = sys.argv[2]
state = {"weight": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
checkpoint.save(state, checkpoint_id=folder)
loaded = {"weight": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}
checkpoint.load(loaded, checkpoint_id=folder)
torch.testing.assert_close(loaded["weight"].full_tensor(), torch.arange(8.0))
print(f"rank {rank}: checkpoint", flush=True)

if size == 2 and release_of(torch.__version__) >= (2, 10):  # 2.9's own pipelines do not run on mpi4py
    part = copy.deepcopy(model)[:2] if rank == 0 else copy.deepcopy(model)[2:]
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, _: output.square().mean())
    target = torch.zeros(8, 8, dtype=torch.float64)
    schedule.step(batch) if rank == 0 else schedule.step(target=target)
    wanted = copy.deepcopy(model)
    wanted(batch).square().mean().backward()
    right = wanted[0] if rank == 0 else wanted[2]
    found = part[0]
    torch.testing.assert_close(found.weight.grad, right.weight.grad)
    print(f"rank {rank}: pipeline", flush=True)
dist.destroy_process_group()
