"""Classify CIFAR10's images with the courses' CNN: two convolutions, pooling, three linear layers.

    mpirun -np 4 python -m runner workloads.cifar10 --data-dir ~/data
    mpirun -np 4 python -m runner workloads.cifar10 --data fake --epochs 1

Without CIFAR10 on disk or a network it trains on random images: enough to check that it runs.
"""

from __future__ import annotations

import torch
from torch import nn

from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.options import read_options, workload_parser
from runner.training.run import Run
from workloads.data.images import cifar10
from workloads.models.convnets import Cifar10Net

PLAN = Plan(shard=("features", "classifier"), pipeline=("features.*", "classifier.*"))


def main(run: Run, argv: list[str]) -> None:
    """Train, evaluate, and print where the files are."""
    parser = workload_parser(run, __doc__, plan=PLAN, data=("auto", "cifar10", "fake"), epochs=2)
    group = parser.add_argument_group("optimizer")
    group.add_argument("--momentum", type=float, default=0.9, help="of SGD (default: %(default)s)")
    options, given = read_options(run, parser, argv)
    torch.manual_seed(options.seed)
    train_data, test_data = cifar10(run, options)
    task = Task(
        model=Cifar10Net(),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr, momentum=given.momentum),
        train_data=train_data,
        test_data=test_data,
        unit="images",
        plan=PLAN,
    )
    fit(run, task, options)
