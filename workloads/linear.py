"""A linear layer on random data: a minimal training, to try out launching, saving and resuming.

    mpirun -np 4 python -m runner workloads.linear --epochs 100 --save-every 20 --batch-size 512
    mpirun -np 4 python -m runner workloads.linear --epochs 100 --resume

2,048 samples of 20 random numbers, each with a random target; the loss falls to the variance of the targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Options of workloads.linear."""

    lr: float = 1e-2
    data: str = option("random", choices=("random",))


def main(run: Run, options: Options) -> None:
    """Train, and print where the files are."""
    generator = torch.Generator().manual_seed(options.seed)
    data = TensorDataset(torch.rand(2048, 20, generator=generator), torch.rand(2048, 1, generator=generator))
    torch.manual_seed(options.seed)
    task = Task(
        model=nn.Linear(20, 1),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=data,
        is_classification=False,
    )
    fit(run, task, options)
