"""The training of fabric_script.py by the runner."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import runner


def main():
    run = runner.start(runner.Settings(epochs=3, clip_norm=1.0, resume="auto"))
    torch.manual_seed(0)
    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 8, generator=numbers)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    model = run.prepare(model, optimizer=partial(torch.optim.AdamW, lr=1e-2))
    for inputs, targets in run.batches(loader):
        loss = F.mse_loss(model(inputs), targets)
        model.backward(loss)
        model.step()


if __name__ == "__main__":
    main()
