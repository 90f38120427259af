"""A regression that draws random numbers of every kind; its steps, evaluations and checkpoints may be slow."""

import os
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from runner.base.settings import option
from runner.training.checkpoint import shards
from runner.training.evaluation import evaluate
from runner.training.loop import State, Task, fit, trained
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


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Test data that take two ranks ten minutes; they make the file when a sample is read after a step."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.has_trained = False  # some samples are read before the training, to see their form

    def __len__(self) -> int:
        return 600 * 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.has_trained:
            self.file.touch()
        time.sleep(1 / 32)
        return torch.zeros(8), torch.zeros(1)


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
    optimizer: str = option("SGD", "", choices=("SGD", "Adam", "AdamW"))
    decay: float = option(0.0, "weight decay")
    nan_at: int | None = option(None, "the sample whose target is no number", parse=int)
    nan_gradient: bool = option(False, "the loss is finite, and its gradient is not")
    slow_writing: float = option(0.0, "seconds before tensors are written")
    slow_steps: float = option(0.0, "seconds of a step, in which there is the file in-step")
    slow_evaluation: bool = option(False, "an evaluation takes ten minutes, and makes the file evaluates")
    only_evaluates: bool = option(False, "its newest checkpoint")
    no_epoch: bool = False
    then_in: str | None = option(None, "the folder in which the program is after its first step")
    largest_file: int | None = option(None, "largest file in bytes on the failing rank", parse=int)
    failing_rank: int = option(0, "the rank whose files are limited", parse=int)


def main(run: Run, options: Options) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(96, 8, generator=generator) * 3, torch.randn(96, 1, generator=generator)
    if options.nan_at is not None:
        targets[options.nan_at] = float("nan")
    slow = Slow(options.checkpoint_dir / "evaluates")
    torch.manual_seed(options.seed)
    task = Task(
        model=NETS[options.net](),
        loss=odd_gradient if options.nan_gradient else nn.MSELoss(),
        optimizer=lambda parameters: getattr(torch.optim, options.optimizer)(
            parameters, lr=options.lr, weight_decay=options.decay
        ),
        train_data=Augmented(inputs[:64], targets[:64]),
        test_data=slow if options.slow_evaluation else TensorDataset(inputs[64:], targets[64:]),
        is_classification=False,
    )

    def after_step(_: State) -> None:
        os.chdir(options.then_in or ".")
        slow.has_trained = True
        if options.slow_steps:
            (options.checkpoint_dir / "in-step").touch()
            time.sleep(options.slow_steps)

    if options.only_evaluates:
        run.print(f"evaluated: {evaluate(run, trained(run, task, options), options)}")
        return
    write = shards.write_part
    shards.write_part = after(options.slow_writing, write)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = options.largest_file if run.rank == options.failing_rank else None
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit or before[0], before[1]))
    try:
        fit(run, task, replace(options, epochs=0) if options.no_epoch else options, on_step=[after_step])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)  # for the next turn
        shards.write_part = write
