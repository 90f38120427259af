"""Classify CIFAR10's images with AlexNet, data and pipeline parallel: the recipe of DeepSpeed's tutorial and of courses.

    mpirun -np 4 python -m runner workloads.alexnet --pp 2 --micro-batches 8
    mpirun -np 4 python -m runner workloads.alexnet --pp 2 --micro-batches 8 --data-dir ~/data --image-size 224

The first is two-way data parallel × two stages × eight micro-batches. Stages are cut where each takes the same time, by
measurement. Without CIFAR10 on disk or a network it trains on random images. AlexNet is made for images of 224 pixels; the
default of 64, nearly the smallest that it takes, trains on CPUs.
"""

from __future__ import annotations

import torch
from torch import nn

from runner.errors import UsageError, raised_on_all_ranks
from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.options import positive, read_options, workload_parser
from runner.training.run import Run
from workloads.data.images import cifar10
from workloads.models.convnets import chained

SMALLEST = 63  # pixels; of fewer the last pooling leaves nothing
PLAN = Plan(shard=("features", "classifier.1", "classifier.4", "classifier.6"), pipeline=("features.*", "classifier.*"))


def main(run: Run, argv: list[str]) -> None:
    """Train, evaluate, and print where the files are."""
    parser = workload_parser(run, __doc__, plan=PLAN, data=("auto", "cifar10", "fake"), epochs=2, lr=1e-2)
    group = parser.add_argument_group("model and optimizer")
    group.add_argument(
        "--image-size", type=positive, default=64, metavar="PIXELS", help="that images are enlarged to (default: 64)"
    )
    group.add_argument("--dropout", type=float, default=0.5, metavar="P", help="before linear layers (default: 0.5)")
    group.add_argument("--momentum", type=float, default=0.9, help="of SGD (default: %(default)s)")
    options, given = read_options(run, parser, argv)
    _check(given.image_size, given.dropout)
    models = run.load("torchvision").models
    torch.manual_seed(options.seed)
    enlarged = nn.Upsample(size=(given.image_size, given.image_size), mode="bilinear")
    model = chained(models.alexnet(num_classes=10, dropout=given.dropout), enlarged=enlarged)
    train_data, test_data = cifar10(run, options)
    task = Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr, momentum=given.momentum),
        train_data=train_data,
        test_data=test_data,
        unit="images",
        plan=PLAN,
    )
    fit(run, task, options)


@raised_on_all_ranks()
def _check(image_size: int, dropout: float) -> None:
    if image_size < SMALLEST:
        raise UsageError(f"--image-size {image_size} is too small for AlexNet", fix=f"take {SMALLEST} or more")
    if not 0 <= dropout < 1:
        raise UsageError(f"--dropout {dropout} is not the share that is dropped", fix="take 0 or more, and less than 1")
