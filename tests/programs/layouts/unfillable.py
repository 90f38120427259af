"""A workload whose model is a function, and whose last module cannot be filled: ``unfillable [--buffer] [OPTIONS]``."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.options import read_options, workload_parser
from runner.training.run import Run

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


def main(run: Run, argv: list[str]) -> None:
    parser = workload_parser(run, __doc__, plan=PLAN, data=("random",), epochs=1, lr=0.01)
    parser.add_argument("--buffer", action="store_true")
    options, given = read_options(run, parser, argv)
    last = Masked if given.buffer else Scaled
    task = Task(
        model=lambda: nn.Sequential(nn.Linear(4, 4), last()),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        train_data=TensorDataset(torch.ones(64, 4), torch.ones(64, 4)),
        plan=PLAN,
    )
    fit(run, task, options)
