"""workloads.linear with an optimizer whose weight decay is so strong that one step too many shows."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.training.loop import Task, fit
from runner.training.options import read_options, workload_parser
from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    options, _ = read_options(run, workload_parser(run, __doc__, data=("random",), lr=1e-2), argv)
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
