"""Which models show that they draw random numbers in training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from runner.parallel.streams import draws


class Noise(nn.Module):
    """Adds noise."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.noise_std = std

    def forward(self, values: Tensor) -> Tensor:
        return values + self.noise_std * torch.randn_like(values)


class Thinned(nn.Module):
    """Leaves out some of its inputs."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(0.1),
        nn.FeatureAlphaDropout(),
        nn.MultiheadAttention(4, 2, dropout=0.1),
        nn.LSTM(2, 2, num_layers=2, dropout=0.1),
        StochasticDepth(0.2, "row"),
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, output_ratio=0.5),
        Noise(0.1),
        Thinned(0.5),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_module_that_draws_shows_it(module: nn.Module) -> None:
    assert draws(nn.Sequential(nn.Linear(2, 2), module))


@pytest.mark.parametrize(
    "module",
    [nn.Dropout(0.0), StochasticDepth(0.0, "row"), Noise(0.0), nn.BatchNorm1d(2), nn.LPPool1d(2.0, 2), Thinned(2.0)],
    ids=lambda module: type(module).__name__,
)
def test_a_module_that_draws_nothing_has_no_streams(module: nn.Module) -> None:
    assert not draws(nn.Sequential(nn.Linear(2, 2), module))
