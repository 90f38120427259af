"""How fast torchvision's ResNets train on synthetic images, by Horovod's benchmark protocol.

    mpirun -np 4 python -m runner workloads.resnet --model resnet50 --batch-size 32
    mpirun -np 2 python -m runner workloads.resnet --image-size 64 --batch-size 8 --strategy horovod
    mpirun -np 4 python -m runner workloads.resnet --precision bf16 --channels-last --compile
    mpirun -np 4 python -m runner workloads.resnet --pp 2 --micro-batches 8
    mpirun -np 2 python -m runner compare workloads.resnet --image-size 64 --batch-size 8

It saves nothing and learns nothing, so it has no options for checkpoints, metrics or epochs. Protocol and terms are those of Horovod's
``pytorch_synthetic_benchmark.py``, so that results compare with published ones: warm-up batches, then iterations of some batches each,
and their mean plus or minus 1.96 standard deviations, per rank and in total.
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.base.quantities import positive
from runner.base.settings import option
from runner.parallel import make_trainer
from runner.parallel.task import Plan, Task
from runner.parallel.trees import to_device
from runner.training.data.feeds import feed_of, with_batch_of
from runner.training.data.source import source_of
from runner.training.run import Run
from runner.training.same_task import check_task
from runner.training.settings import StepSettings
from workloads.models.convnets import chained

CLASSES = 1000
PLAN = Plan(pipeline=("layer*.*", "fc"))  # small enough to be compiled and sharded in one


@dataclass(frozen=True, kw_only=True)
class Options(StepSettings):
    """Options of workloads.resnet."""

    model: str = option("resnet18", "model of torchvision", choices=("resnet18", "resnet50"))
    image_size: int = option(224, "width and height of the images", parse=positive, metavar="PIXELS")
    channels_last: bool = option(False, "lay out tensors as NHWC, which is faster for convolutions")
    warmup_batches: int = option(10, "batches before the timing", parse=positive)
    batches_per_iteration: int = option(10, "batches that are timed together", parse=positive)
    iterations: int = option(10, "number of timed iterations", parse=positive)


def main(run: Run, options: Options) -> None:
    """Train, and print the images per second."""
    if options.channels_last and (options.strategy == "fsdp" or options.pp > 1):
        with raised_on_all_ranks():
            raise UsageError(
                "--channels-last lays out weights as fully_shard, which --strategy fsdp and --pp use, does not take them",
                fix="leave it out, or take --strategy ddp without --pp",
            )
    models = run.load("torchvision").models
    torch.manual_seed(options.seed)
    model: nn.Module = chained(getattr(models, options.model)(num_classes=CLASSES))
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    task = Task(
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        train_data=Synthetic(
            options.image_size, kept=options.batch_size, length=4 * options.batch_size * run.data_size
        ),
        unit="images",
        plan=PLAN,
    )
    if run.train_by is not None:
        run.train_by(run, task, options)
    else:
        benchmark(run, task, options)


def benchmark(run: Run, task: Task, options: Options) -> None:
    """Train repeatedly on one batch per rank, and print the speed. Collective."""
    device, source = run.device, source_of(task)
    settings = with_batch_of(source, options)
    looks = check_task(run, task, settings)
    trainer = make_trainer(task, run.setting(settings.dtype, settings, looks["training"].batch))
    first = next(feed_of(run, source, replace(settings, workers=0)).batches(0, 0))
    batch = to_device(first.value, device, trainer.dtype)
    board, number = run.job.board, itertools.count(1)
    batches = options.warmup_batches + options.iterations * options.batches_per_iteration

    def seconds_per_step(steps: int) -> float:
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            loss = trainer.step(batch)
            board.step(next(number), batches, 1, 1)
        loss.item()  # waits for the device
        return (time.perf_counter() - start) / steps

    one = "rank" if run.data_size == run.size else "data-parallel rank"
    run.print(f"batch size: {settings.batch_size} per {one}, {run.size} ranks on {device.type}")
    with board.training():
        seconds_per_step(options.warmup_batches)
        speeds = []
        for iteration in range(options.iterations):
            speeds.append(settings.batch_size / seconds_per_step(options.batches_per_iteration))
            run.print(f"iteration {iteration + 1}: {speeds[-1]:.1f} {task.unit}/s per {one}")
    mean, interval = statistics.fmean(speeds), 1.96 * statistics.pstdev(speeds)
    total, spread = run.sum(mean, interval)
    run.print(f"{task.unit}/s per {one}: {mean:.1f} ± {interval:.1f}")
    run.print(f"total {task.unit}/s on {run.size} rank(s): {total:.1f} ± {spread:.1f}")


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
