"""Classify CIFAR10's images with AlexNet, data and pipeline parallel: the recipe of DeepSpeed's tutorial and of courses.

    mpirun -np 4 python -m runner workloads.alexnet --pp 2 --micro-batches 8
    mpirun -np 4 python -m runner workloads.alexnet --pp 2 --micro-batches 8 --data-dir ~/data --image-size 224

The first is two-way data parallel × two stages × eight micro-batches. Stages are cut where each takes the same time, by
measurement. Without CIFAR10 on disk or a network it trains on random images. AlexNet is made for images of 224 pixels; the
default of 64, nearly the smallest that it takes, trains on CPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from runner.base.quantities import positive
from runner.base.settings import option
from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings
from workloads.data.images import cifar10
from workloads.models.convnets import chained

PLAN = Plan(shard=("features", "classifier.1", "classifier.4", "classifier.6"), pipeline=("features.*", "classifier.*"))


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Options of workloads.alexnet."""

    epochs: int = 2
    lr: float = 1e-2
    data: str = option("auto", choices=("auto", "cifar10", "fake"))
    momentum: float = option(0.9, "momentum of SGD", group="training")
    dropout: float = option(0.5, "dropout before linear layers", metavar="P", group="training")
    image_size: int = option(
        64, "width and height to which images are enlarged", parse=positive, metavar="PIXELS", group="data"
    )


def main(run: Run, options: Options) -> None:
    """Train, evaluate, and print where the files are."""
    models = run.load("torchvision").models
    torch.manual_seed(options.seed)
    enlarged = nn.Upsample(size=(options.image_size, options.image_size), mode="bilinear")
    model = chained(models.alexnet(num_classes=10, dropout=options.dropout), enlarged=enlarged)
    train_data, test_data = cifar10(run, options)
    task = Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr, momentum=options.momentum),
        train_data=train_data,
        test_data=test_data,
        unit="images",
        plan=PLAN,
    )
    fit(run, task, options)
