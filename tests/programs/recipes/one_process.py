"""A small network on random points, in one process: no distribution at all."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
points = torch.randn(1024, 64, device=device)
classes = (points @ torch.randn(64, 10, device=device)).argmax(dim=1)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(points), classes).backward()
    optimizer.step()
accuracy = (model(points).argmax(dim=1) == classes).float().mean().item()
print(f"one process: accuracy above 0.9 {accuracy > 0.9}", flush=True)
