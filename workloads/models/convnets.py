"""Convolutional networks for image classification: two small ones, and torchvision's in a form that a pipeline can cut.

The small ones have no batch norm: results do not depend on the number of ranks.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn


class MnistNet(nn.Sequential):
    """Two convolutions and two linear layers, 105,866 parameters: [batch, 1, 28, 28] → [batch, 10]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


class Cifar10Net(nn.Module):
    """The CNN that courses use: two convolutions, each with pooling, and three linear layers.

    [batch, 3, 32, 32] → [batch, 10], 62,006 parameters (PyTorch tutorial "Training a Classifier").
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


def chained(model: nn.Module, **before: nn.Module) -> nn.Sequential:
    """torchvision's AlexNet or ResNet as a chain of its own modules, so that a pipeline can cut it between any two.

    Its ``forward`` flattens the values before the last module; here a module does. Parameters keep their names.

    Args:
        before: modules to call first, by name.
    """
    *modules, last = model.named_children()
    return nn.Sequential(OrderedDict([*before.items(), *modules, ("flatten", nn.Flatten()), last]))
