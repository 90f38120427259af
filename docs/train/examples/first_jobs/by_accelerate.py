"""The first job by Accelerate: accelerate config, then accelerate launch by_accelerate.py."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(0)
inputs = torch.randn(512, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
print(f"loss {loss.item():.6f}")
