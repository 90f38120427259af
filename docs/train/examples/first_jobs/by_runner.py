"""The first job by the runner: mpirun -np 2 python -m runner by_runner.py."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import runner

run = runner.start(runner.Settings(epochs=3))
torch.manual_seed(0)
inputs = torch.randn(512, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
model = run.prepare(model, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
for inputs, targets in run.batches(loader):
    loss = mse_loss(model(inputs), targets)
    model.backward(loss)
    model.step()
print(f"loss {loss.item():.6f}")
