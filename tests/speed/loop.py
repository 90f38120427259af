"""A training step of workloads.llama under the runner's loop against a loop by hand, with the same batches, in turn.

    mpirun -np 2 python -m runner tests.speed.loop [--strategy fsdp] [--rounds 15] [--max-steps 30] [--cpu-time]

A step is the mean from the end of the first to the end of the last. The loop by hand makes the same model, optimizer, schedule and
clipping by torch's own functions, by DDP or fully_shard. The options are those of workloads.llama. ``--cpu-time`` is that of the
thread that trains, which other processes on its core hardly change; a wait for another rank by gloo takes none of it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from runner.comm.timing import synchronize
from runner.parallel.task import Task
from runner.training.batches import ShardSampler, train_loader
from runner.training.loop import fit
from runner.training.options import TrainingOptions
from runner.training.run import Run
from tests.speed.step import compare_loops
from workloads import llama


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    given, rest = parser.parse_known_args(argv)

    def clock() -> float:
        synchronize(run.device)
        return time.thread_time() if given.cpu_time else time.perf_counter()

    def measure(_: Run, task: Task, options: TrainingOptions) -> None:
        alone = replace(task, test_data=None)

        def runner() -> float:
            ends: list[float] = []
            with contextlib.redirect_stdout(io.StringIO()):
                fit(run, alone, options, on_step=[lambda _: ends.append(clock())])
            return (ends[-1] - ends[0]) / (len(ends) - 1)

        run.say(f"{options.parallel.strategy}, {run.size} ranks, {options.batch_size} samples per rank:")
        compare_loops(
            run, {"runner": runner, "by hand": lambda: by_hand(run, task, options, clock)}, given.rounds, 1.02
        )

    llama.main(replace(run, train_by=measure), ["--max-steps", "30", "--save-every", "0", *rest])


def by_hand(run: Run, task: Task, options: TrainingOptions, clock: Callable[[], float]) -> float:
    """Seconds per step, by this clock."""
    model, steps = task.build(run.device, torch.float32), options.max_steps
    assert steps is not None
    assert task.schedule is not None
    assert options.parallel.clip_norm is not None
    wrapped: Any = model
    if options.parallel.strategy == "fsdp":
        for unit in task.plan.units(model):
            fully_shard(unit)
        fully_shard(model)
    else:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = task.optimizer(model.parameters())
    schedule = LambdaLR(optimizer, task.schedule)
    sampler = ShardSampler.over(task.train_data, run.rank, run.size, options.seed)
    loader = train_loader(task.train_data, sampler, options.batch_size, options.workers)
    ends = []
    for _, (inputs, targets) in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        loss = task.loss(wrapped(inputs.to(run.device)), targets.to(run.device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.parallel.clip_norm)
        optimizer.step()
        schedule.step()
        ends.append(clock())
    return (ends[-1] - ends[0]) / (len(ends) - 1)
