"""A torchrun script as the tutorials write it: DDP, DistributedSampler, an epoch of training."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--no-destroy", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(256, 20), torch.rand(256, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=args.workers)
    model = DistributedDataParallel(nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    weights = [torch.empty_like(model.module.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.weight.detach())
    same = all(torch.equal(weights[0], other) for other in weights)
    print(f"rank {os.environ['RANK']} steps {2 * len(loader)} same {same}", flush=True)
    if not args.no_destroy:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
