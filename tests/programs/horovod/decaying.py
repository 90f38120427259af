"""workloads.linear with an optimizer whose weight decay is so strong that one step too many shows."""

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

    lr: float = 1e-2


def main(run: Run, options: Options) -> None:
    generator = torch.Generator().manual_seed(options.seed)
    torch.manual_seed(options.seed)
    task = Task(
        model=nn.Linear(20, 1),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=options.lr, weight_decay=5.0),
        train_data=TensorDataset(torch.rand(512, 20, generator=generator), torch.rand(512, 1, generator=generator)),
        is_classification=False,
    )
    fit(run, task, options)
