"""A workload that ends without a step: it evaluates its newest checkpoint, or is asked for no epoch."""

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.training.evaluation import evaluate
from runner.training.loop import Task, fit, trained
from runner.training.run import Run
from runner.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    no_epoch: bool = False


def main(run: Run, options: Options) -> None:
    data = TensorDataset(torch.zeros(8, 8), torch.zeros(8, 1))
    task = Task(
        model=nn.Linear(8, 1),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=data,
        test_data=data,
        is_classification=False,
    )
    if options.no_epoch:
        fit(run, task, replace(options, epochs=0))
    else:
        run.print(f"evaluated: {evaluate(run, trained(run, task, options), options)}")
