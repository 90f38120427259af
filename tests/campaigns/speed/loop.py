"""A training step of workloads.llama under the runner's loop against a loop by hand, with the same batches, in turn.

    mpirun -np 2 python -m runner tests.campaigns.speed.loop [--strategy fsdp] [--rounds 15] [--max-steps 30] [--cpu-time] [--fabric]

A step is the mean from the end of the first to the end of the last. The loop by hand makes the same model, optimizer, schedule and
clipping by torch's own functions, by DDP or fully_shard. The options are those of workloads.llama. ``--cpu-time`` is that of the
thread that trains, which other processes on its core hardly change; a wait for another rank by gloo takes none of it.
``--fabric`` adds the loop as Lightning Fabric's users write it (``pip install lightning-fabric``), whose FSDP needs a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from runner.backends.timing import synchronize
from runner.parallel.task import Task
from runner.training.data.feeds import feed_of
from runner.training.data.loading import IndexedFeed
from runner.training.data.source import source_of
from runner.training.loop import fit
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.workload import call
from tests.campaigns.speed.spread import ratios, spread
from workloads import llama

Loop = tuple[
    Iterable[Any], Callable[[Tensor, Tensor], None], Optimizer
]  # the batches, a step, what the schedule changes


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--fabric", action="store_true")
    given, rest = parser.parse_known_args(argv)

    def clock() -> float:
        synchronize(run.device)
        return time.thread_time() if given.cpu_time else time.perf_counter()

    def measure(_: Run, task: Task, options: Settings) -> None:
        alone = replace(task, test_data=None)

        def runner() -> list[float]:
            ends: list[float] = []
            with contextlib.redirect_stdout(io.StringIO()):
                fit(run, alone, options, on_step=[lambda _: ends.append(clock())])
            return ends

        def written(loop: Callable[[Run, Task, Settings], Loop]) -> Callable[[], list[float]]:
            return lambda: ends_of_steps(loop(run, task, options), task, options, clock)

        if given.fabric and options.strategy != "ddp":
            run.agree("--fabric is by DDP", fix="leave it out, or take --strategy ddp")
        run.print(f"{options.strategy}, {run.size} ranks, {options.batch_size} samples per rank:")
        loops = {"runner": runner, "by hand": written(by_hand)}
        if given.fabric:
            loops["fabric"] = written(by_fabric)
        compare(run, loops, given.rounds)

    with TemporaryDirectory() as folder:
        shared = run.on_main(lambda: folder)
        usual = ["--max-steps", "30", "--save-every", "end", "--checkpoint-dir", shared]
        call(llama.main, replace(run, train_by=measure), [*usual, *rest])


def compare(run: Run, loops: dict[str, Callable[[], list[float]]], rounds: int) -> None:
    """Run loops in turn, and print their times per step, and the first one's ratios to the others.

    Args:
        loops: return when each of their steps has ended.
    """
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    first, *others = names = list(loops)
    for number in range(rounds + 1):  # the first is not counted
        for name in names:
            torch.distributed.barrier()
            ends = loops[name]()
            if number:
                seconds[name].append((ends[-1] - ends[0]) / (len(ends) - 1))
        names.append(names.pop(0))  # another goes first
    for name, times in seconds.items():
        run.print(f"{name:10} {spread(1e3 * one for one in times)} ms per step")
    for name in others:
        run.print(f"{first} / {name:10} {spread(ratios(seconds[first], seconds[name]))}")


def by_hand(run: Run, task: Task, options: Settings) -> Loop:
    torch.manual_seed(options.seed)
    model = task.build(run.device, torch.float32)
    wrapped: Any = model
    if options.strategy == "fsdp":
        for unit in task.plan.units(model):
            fully_shard(unit)
        fully_shard(model)
    else:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = task.optimizer(model.parameters())

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss = task.loss(wrapped(inputs.to(run.device)), targets.to(run.device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm or math.inf)
        optimizer.step()

    return batches(run, task, options), step, optimizer


def by_fabric(run: Run, task: Task, options: Settings) -> Loop:
    """Fabric uses the process group that is there."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import MPIEnvironment

    fabric = Fabric(
        accelerator="cpu" if run.device.type == "cpu" else "cuda",
        devices=run.job.topology.local_size(run.rank),
        num_nodes=len(run.job.topology.hosts),
        strategy="ddp",
        plugins=[MPIEnvironment()],
    )
    fabric.launch()
    torch.manual_seed(options.seed)
    model = task.build(run.device, torch.float32)
    model, optimizer = fabric.setup(model, task.optimizer(model.parameters()))
    loader = fabric.setup_dataloaders(batches(run, task, options), use_distributed_sampler=False)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss = task.loss(model(inputs), targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=options.clip_norm or math.inf)
        optimizer.step()

    return loader, step, optimizer


def batches(run: Run, task: Task, options: Settings) -> Any:
    """The loader of the runner's own batches."""
    feed = feed_of(run, source_of(task), options)
    assert isinstance(feed, IndexedFeed)
    feed.begin(0, 0)
    return feed.loader


def ends_of_steps(loop: Loop, task: Task, options: Settings, clock: Callable[[], float]) -> list[float]:
    """Train; return when each step has ended."""
    loader, step, optimizer = loop
    assert task.schedule is not None
    schedule = LambdaLR(optimizer, task.schedule)
    ends = []
    for batch in itertools.islice(loader, options.max_steps):
        step(*batch.value)
        schedule.step()
        ends.append(clock())
    return ends
