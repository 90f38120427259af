"""A workload that draws random numbers of every kind, in its data and its model, and has buffers."""

import os
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from runner.base.settings import option
from runner.training.checkpoint import shards
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

NETS = {
    "linear": lambda: nn.Linear(8, 1),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 1)),
    "norm": lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)),
}


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """64 samples, each another whenever it is taken."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.rand(8) + random.random() + float(numpy.random.rand())
        return self.inputs[index] + noise, self.targets[index]


def odd_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean square, and a root of zero, whose derivative is infinite, times zero."""
    return nn.functional.mse_loss(outputs, targets) + (0 * outputs).sum().sqrt()


def after(seconds: float, write: Callable[..., list[Path]]) -> Callable[..., list[Path]]:
    """As on a slow disk."""

    def written(*arguments: Any) -> list[Path]:
        time.sleep(seconds)
        return write(*arguments)

    return written


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    epochs: int = 4
    lr: float = 0.01
    net: str = option("dropout", "", choices=NETS)
    optimizer: str = option("SGD", "", choices=("SGD", "Adam"))
    nan_at: int | None = option(None, "the sample whose target is no number", parse=int)
    nan_gradient: bool = option(False, "the loss is finite, and its gradient is not")
    slow_writing: float = option(0.0, "seconds before tensors are written")
    then_in: str | None = option(None, "the folder in which the program is after its first step")
    largest_file: int | None = option(None, "largest file in bytes on the failing rank", parse=int)
    failing_rank: int = option(0, "the rank whose files are limited", parse=int)


def main(run: Run, options: Options) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(96, 8, generator=generator) * 3, torch.randn(96, 1, generator=generator)
    if options.nan_at is not None:
        targets[options.nan_at] = float("nan")
    torch.manual_seed(options.seed)
    task = Task(
        model=NETS[options.net](),
        loss=odd_gradient if options.nan_gradient else nn.MSELoss(),
        optimizer=lambda parameters: getattr(torch.optim, options.optimizer)(parameters, lr=options.lr),
        train_data=Augmented(inputs[:64], targets[:64]),
        test_data=TensorDataset(inputs[64:], targets[64:]),
        is_classification=False,
    )
    write = shards.write_part
    shards.write_part = after(options.slow_writing, write)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = options.largest_file if run.rank == options.failing_rank else None
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit or before[0], before[1]))
    try:
        fit(run, task, options, on_step=[lambda _: os.chdir(options.then_in or ".")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)  # for the next turn
        shards.write_part = write
