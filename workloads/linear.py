"""A linear layer on random data: a minimal training, to try out launching, saving and resuming.

    mpirun -np 4 python -m runner workloads.linear --epochs 100 --save-every 20 --batch-size 512
    mpirun -np 4 python -m runner workloads.linear --epochs 100 --resume

2,048 samples of 20 random numbers, each with a random target; the loss falls to the variance of the targets.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.training.loop import Plan, Task, fit
from runner.training.options import read_options, workload_parser
from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    """Train, and print where the files are."""
    parser = workload_parser(run, __doc__, plan=Plan(), data=("random",), epochs=10, lr=1e-2)
    options, _ = read_options(run, parser, argv)
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
