"""A training by Lightning Fabric."""

import lightning_fabric as lf
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main():
    fabric = lf.Fabric(devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0)
    numbers = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 8, generator=numbers)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=32, shuffle=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
        fabric.print(f"epoch {epoch + 1}: loss {fabric.all_reduce(loss.detach()):.3g}")
        fabric.save("checkpoint.ckpt", {"model": model, "optimizer": optimizer, "epoch": epoch})


if __name__ == "__main__":
    main()
