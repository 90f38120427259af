"""Classify handwritten digits with a small CNN: the main job.

    mpirun -np 4 python -m runner workloads.mnist
    mpirun -np 4 python -m runner workloads.mnist --data mnist --data-dir ~/data --epochs 3
    mpirun -np 4 python -m runner workloads.mnist --strategy fsdp
    mpirun -np 4 python -m runner workloads.mnist --resume

Without MNIST on disk or a network it trains on the 1,797 digits that come with this package.
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
from workloads.data.images import mnist
from workloads.models.convnets import MnistNet

PLAN = Plan(pipeline=("*",))


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Options of workloads.mnist."""

    epochs: int = 15
    batch_size: int = 16
    lr: float = 2e-3
    data: str = option("auto", choices=("auto", "digits", "mnist", "fake"))


def main(run: Run, options: Options) -> None:
    """Train, evaluate, and print where the files are."""
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
