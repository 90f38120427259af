"""How fast torchvision's ResNets train on synthetic images, by Horovod's benchmark protocol.

    mpirun -np 4 python -m runner workloads.resnet --model resnet50 --batch-size 32
    mpirun -np 2 python -m runner workloads.resnet --image-size 64 --batch-size 8 --strategy horovod
    mpirun -np 4 python -m runner workloads.resnet --bf16 --channels-last --compile
    mpirun -np 2 python -m runner compare workloads.resnet --image-size 64 --batch-size 8

It saves nothing and learns nothing, so it has no options for checkpoints, metrics or epochs.
"""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import Tensor, nn
from torch.utils.data import Dataset

from runner.parallel.task import Task
from runner.training.benchmark import Protocol, benchmark
from runner.training.options import positive, read_step_options, step_parser
from runner.training.run import Run

CLASSES = 1000


def main(run: Run, argv: list[str]) -> None:
    """Train, and print the images per second."""
    parser = step_parser(run, __doc__)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--model", choices=("resnet18", "resnet50"), default="resnet18", help="(default: %(default)s)")
    group.add_argument("--image-size", type=positive, default=224, metavar="PIXELS", help="(default: %(default)s)")
    group.add_argument("--warmup-batches", type=positive, default=10, metavar="N", help="not timed (default: 10)")
    group.add_argument("--batches-per-iteration", type=positive, default=10, metavar="N", help="(default: 10)")
    group.add_argument("--iterations", type=positive, default=10, metavar="N", help="(default: 10)")
    group.add_argument("--channels-last", action="store_true", help="NHWC memory, which convolutions like better")
    group.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    group.add_argument("--compile", action="store_true", help="torch.compile; needs a C++ compiler on CPUs")
    options, given = read_step_options(run, parser, argv)
    torch.manual_seed(options.seed)
    model: nn.Module = Forward(
        getattr(torchvision.models, given.model)(num_classes=CLASSES),
        bf16=given.bf16,
        channels_last=given.channels_last,
    )
    if given.compile:
        model.compile()
    task = Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        train_data=Synthetic(given.image_size, kept=options.batch_size, length=4 * options.batch_size * run.data_size),
        unit="images",
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


class Forward(nn.Module):
    """A model that is called with inputs in the given memory format, and with autocast if asked for."""

    def __init__(self, model: nn.Module, *, bf16: bool, channels_last: bool) -> None:
        super().__init__()
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.model = model.to(memory_format=torch.channels_last) if channels_last else model
        self.bf16 = bf16

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16):
            outputs: Tensor = self.model(images.contiguous(memory_format=self.format))
        return outputs.float() if self.bf16 else outputs
