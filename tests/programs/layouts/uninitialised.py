"""A workload whose model is a function, and whose last module cannot be initialised: ``uninitialised [--buffer] [OPTIONS]``."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

PLAN = Plan(pipeline=("*",), shard=("*",))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.scale * values


class Masked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", torch.ones(3))


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    epochs: int = 1
    lr: float = 0.01
    buffer: bool = False


def main(run: Run, options: Options) -> None:
    last = Masked if options.buffer else Scaled
    task = Task(
        model=lambda: nn.Sequential(nn.Linear(4, 4), last()),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        train_data=TensorDataset(torch.ones(64, 4), torch.ones(64, 4)),
        plan=PLAN,
    )
    fit(run, task, options)
