"""Trains by DDP on what an argument says, for a few steps; each of two ranks has a DataLoader."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

what = sys.argv[1]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank if what == "own seeds" else 0)
data = TensorDataset(torch.arange(256.0).reshape(64, 4), torch.arange(64.0).reshape(64, 1))


class Stream(IterableDataset[list[torch.Tensor]]):
    def __iter__(self):
        return iter([list(pair) for pair in data])


sampler = DistributedSampler(data) if what == "sampler" else None
loader = DataLoader(data, batch_size=8, shuffle=sampler is None and what != "in order", sampler=sampler)
train = DataLoader(Stream(), batch_size=8) if what == "stream" else loader
model = DistributedDataParallel(torch.nn.Linear(4, 1))
step_model = torch.compile(model, backend="eager") if what == "compiled" else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
if what == "evaluation":
    train = []
    with torch.no_grad():
        total = sum(float(model(x).sum()) for x, _ in loader)
    model.eval()
    total += sum(float(model(x).sum().detach()) for x, _ in loader)
for epoch in range(2):
    if sampler:
        sampler.set_epoch(epoch)
    for step, (inputs, targets) in enumerate(train):
        own = slice(rank, None, size) if what == "by hand" else slice(None)
        with model.no_sync() if what == "accumulates" and step % 4 < 3 else torch.enable_grad():
            (step_model(inputs[own]) - targets[own]).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
print("trained", flush=True)
