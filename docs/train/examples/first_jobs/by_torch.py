"""A first job in plain PyTorch, on one device."""

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
inputs = torch.randn(512, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model = model.to(device)
for _ in range(3):
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.6f}")
