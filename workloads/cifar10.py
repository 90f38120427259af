"""Classify CIFAR10's images with the courses' CNN: two convolutions, pooling, three linear layers.

    mpirun -np 4 python -m runner workloads.cifar10 --data-dir ~/data
    mpirun -np 4 python -m runner workloads.cifar10 --data fake --epochs 1

Without CIFAR10 on disk or a network it trains on random images: enough to check that it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from runner.base.settings import option
from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings
from workloads.data.images import cifar10
from workloads.models.convnets import Cifar10Net

PLAN = Plan(shard=("features", "classifier"), pipeline=("features.*", "classifier.*"))


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Options of workloads.cifar10."""

    epochs: int = 2
    data: str = option("auto", choices=("auto", "cifar10", "fake"))
    momentum: float = option(0.9, "momentum of SGD", group="training")


def main(run: Run, options: Options) -> None:
    """Train, evaluate, and print where the files are."""
    torch.manual_seed(options.seed)
    train_data, test_data = cifar10(run, options)
    task = Task(
        model=Cifar10Net(),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr, momentum=options.momentum),
        train_data=train_data,
        test_data=test_data,
        unit="images",
        plan=PLAN,
    )
    fit(run, task, options)
