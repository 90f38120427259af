"""Classify handwritten digits with a small CNN: the main job.

    mpirun -np 4 python -m runner workloads.mnist
    mpirun -np 4 python -m runner workloads.mnist --data mnist --data-dir ~/data --epochs 3
    mpirun -np 4 python -m runner workloads.mnist --strategy fsdp
    mpirun -np 4 python -m runner workloads.mnist --resume

Without MNIST on disk or a network it trains on the 1,797 digits that come with this package.
"""

from __future__ import annotations

import torch
from torch import nn

from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.options import read_options, workload_parser
from runner.training.run import Run
from workloads.data.images import mnist
from workloads.models.convnets import MnistNet

PLAN = Plan(pipeline=("*",))


def main(run: Run, argv: list[str]) -> None:
    """Train, evaluate, and print where the files are."""
    parser = workload_parser(
        run, __doc__, plan=PLAN, data=("auto", "digits", "mnist", "fake"), epochs=15, batch_size=16, lr=2e-3
    )
    options, _ = read_options(run, parser, argv)
    torch.manual_seed(options.seed)
    train_data, test_data = mnist(run, options)
    task = Task(
        model=MnistNet(),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=options.lr),
        train_data=train_data,
        test_data=test_data,
        unit="images",
        plan=PLAN,
    )
    fit(run, task, options)
