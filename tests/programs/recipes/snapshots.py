"""DDP as the courses' torchrun scripts do it; rank 0 writes a snapshot after each epoch: ``snapshots.py FILE EPOCHS``."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(snapshot: Path, epochs: int) -> None:
    dist.init_process_group("gloo")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(128, 20), torch.rand(128, 1))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "epochs": epoch + 1}, snapshot)
    print(f"rank {rank} local {local_rank} of {dist.get_world_size()}: {epochs} epochs", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
