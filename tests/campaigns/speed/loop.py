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
from tests.campaigns.speed.step import compare_loops
from workloads import llama


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

        def runner() -> float:
            ends: list[float] = []
            with contextlib.redirect_stdout(io.StringIO()):
                fit(run, alone, options, on_step=[lambda _: ends.append(clock())])
            return (ends[-1] - ends[0]) / (len(ends) - 1)

        if given.fabric and options.strategy != "ddp":
            run.agree("--fabric is by DDP", fix="leave it out, or take --strategy ddp")
        run.print(f"{options.strategy}, {run.size} ranks, {options.batch_size} samples per rank:")
        loops = {"runner": runner, "by hand": lambda: by_hand(run, task, options, clock)}
        if given.fabric:
            loops["fabric"] = lambda: by_fabric(run, task, options, clock)
        compare_loops(run, loops, given.rounds, 1.02)

    with TemporaryDirectory() as folder:
        shared = run.on_main(lambda: folder)
        usual = ["--max-steps", "30", "--save-every", "end", "--checkpoint-dir", shared]
        call(llama.main, replace(run, train_by=measure), [*usual, *rest])


def by_hand(run: Run, task: Task, options: Settings, clock: Callable[[], float]) -> float:
    """Seconds per step, by this clock."""
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
    loader = _loader(run, task, options)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss = task.loss(wrapped(inputs.to(run.device)), targets.to(run.device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _clip_norm(options))
        optimizer.step()

    return _seconds_per_step(loader, step, optimizer, task, options, clock)


def by_fabric(run: Run, task: Task, options: Settings, clock: Callable[[], float]) -> float:
    """Seconds per step, by this clock. Fabric uses the process group that is there."""
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
    loader = fabric.setup_dataloaders(_loader(run, task, options), use_distributed_sampler=False)

    def step(inputs: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad()
        loss = task.loss(model(inputs), targets)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=_clip_norm(options))
        optimizer.step()

    return _seconds_per_step(loader, step, optimizer, task, options, clock)


def _loader(run: Run, task: Task, options: Settings) -> Any:
    feed = feed_of(run, source_of(task), options)
    assert isinstance(feed, IndexedFeed)
    feed.begin(0, 0)
    return feed.loader


def _clip_norm(options: Settings) -> float:
    assert options.clip_norm is not None
    return options.clip_norm


def _seconds_per_step(
    loader: Iterable[Any],
    step: Callable[[Tensor, Tensor], None],
    optimizer: Optimizer,
    task: Task,
    options: Settings,
    clock: Callable[[], float],
) -> float:
    assert options.max_steps is not None
    assert task.schedule is not None
    schedule = LambdaLR(optimizer, task.schedule)
    ends = []
    for batch in itertools.islice(loader, options.max_steps):
        step(*batch.value)
        schedule.step()
        ends.append(clock())
    return (ends[-1] - ends[0]) / (len(ends) - 1)
