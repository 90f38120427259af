"""Eight linear layers of 1024, a rank's batch of 32: 8.4 million parameters that have to be exchanged in every step.

mpirun -np 2 python -m runner compare tests.campaigns.speed.mlp
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    batch_size: int = 32


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    count = 8 * options.batch_size * run.size
    task = Task(
        model=nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=TensorDataset(torch.randn(count, 1024), torch.randn(count, 1024)),
        is_classification=False,
        unit="samples",
    )
    fit(run, task, options)
