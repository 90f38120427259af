"""A small network on the digits, in one process: no distribution at all."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32, device=device)
labels = torch.tensor(labels, device=device)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(50):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
accuracy = (model(images).argmax(dim=1) == labels).float().mean().item()
print(f"one process: accuracy above 0.9 {accuracy > 0.9}", flush=True)
