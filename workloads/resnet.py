"""How fast torchvision's ResNets train on synthetic images, by Horovod's benchmark protocol.

    mpirun -np 4 python -m runner workloads.resnet --model resnet50 --batch-size 32
    mpirun -np 2 python -m runner workloads.resnet --image-size 64 --batch-size 8 --strategy horovod
    mpirun -np 4 python -m runner workloads.resnet --bf16 --channels-last --compile
    mpirun -np 4 python -m runner workloads.resnet --pp 2 --micro-batches 8
    mpirun -np 2 python -m runner compare workloads.resnet --image-size 64 --batch-size 8

It saves nothing and learns nothing, so it has no options for checkpoints, metrics or epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from runner.errors import UsageError, raised_on_all_ranks
from runner.parallel.task import Plan, Task
from runner.training.benchmark import Protocol, benchmark
from runner.training.options import positive, read_step_options, step_parser
from runner.training.run import Run
from workloads.models.convnets import chained

CLASSES = 1000
PLAN = Plan(pipeline=("layer*.*", "fc"))  # small enough to be compiled and sharded in one


def main(run: Run, argv: list[str]) -> None:
    """Train, and print the images per second."""
    parser = step_parser(run, __doc__, plan=PLAN)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--model", choices=("resnet18", "resnet50"), default="resnet18", help="(default: %(default)s)")
    group.add_argument("--image-size", type=positive, default=224, metavar="PIXELS", help="(default: %(default)s)")
    group.add_argument("--warmup-batches", type=positive, default=10, metavar="N", help="not timed (default: 10)")
    group.add_argument("--batches-per-iteration", type=positive, default=10, metavar="N", help="(default: 10)")
    group.add_argument("--iterations", type=positive, default=10, metavar="N", help="(default: 10)")
    group.add_argument("--channels-last", action="store_true", help="NHWC memory, which convolutions like better")
    group.add_argument(
        "--bf16", action="store_const", dest="precision", const="bf16", help="the same as --precision bf16"
    )
    options, given = read_step_options(run, parser, argv)
    parallel = options.parallel
    if given.channels_last and (parallel.strategy == "fsdp" or parallel.pp > 1):
        with raised_on_all_ranks():
            raise UsageError(
                "--channels-last lays out weights as fully_shard, which --strategy fsdp and --pp use, does not take them",
                fix="leave it out, or take --strategy ddp without --pp",
            )
    models = run.load("torchvision").models
    torch.manual_seed(options.seed)
    model: nn.Module = chained(getattr(models, given.model)(num_classes=CLASSES))
    if given.channels_last:
        model = model.to(memory_format=torch.channels_last)
    task = Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        train_data=Synthetic(given.image_size, kept=options.batch_size, length=4 * options.batch_size * run.data_size),
        unit="images",
        plan=PLAN,
    )
    protocol = Protocol(
        warmup_batches=given.warmup_batches,
        batches_per_iteration=given.batches_per_iteration,
        iterations=given.iterations,
    )
    benchmark(run, task, options, protocol)


class Synthetic(Dataset[Any]):
    """Random images [3, size, size] with random classes, the same on every rank: ``kept`` of them, repeated."""

    def __init__(self, size: int, *, kept: int, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(kept, 3, size, size, generator=generator)
        self.classes = torch.randint(CLASSES, (kept,), generator=generator)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index % len(self.images)], self.classes[index % len(self.classes)]
