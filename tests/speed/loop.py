"""A training step of workloads.llama under the runner's loop against a loop by hand, with the same batches, in turn.

    mpirun -np 2 python -m runner tests.speed.loop [--strategy fsdp] [--rounds 15] [--max-steps 30]

The loop by hand makes the same model, optimizer, schedule and clipping by torch's own functions, by DDP or fully_shard. The
options are those of workloads.llama.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

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
    given, rest = parser.parse_known_args(argv)

    def measure(_: Run, task: Task, options: TrainingOptions) -> None:
        alone = replace(task, test_data=None)

        def runner() -> float:
            with contextlib.redirect_stdout(io.StringIO()):
                result = fit(run, alone, options)
            return options.batch_size * run.size / result.samples_per_s

        run.say(f"{options.parallel.strategy}, {run.size} ranks, {options.batch_size} samples per rank:")
        compare_loops(run, {"runner": runner, "by hand": lambda: by_hand(run, task, options)}, given.rounds, 1.02)

    llama.main(replace(run, train_by=measure), ["--max-steps", "30", "--save-every", "0", *rest])


def by_hand(run: Run, task: Task, options: TrainingOptions) -> float:
    """Seconds per step."""
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
    start = time.perf_counter()
    for _, (inputs, targets) in zip(range(steps), loader, strict=False):
        optimizer.zero_grad()
        loss = task.loss(wrapped(inputs.to(run.device)), targets.to(run.device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), options.parallel.clip_norm)
        optimizer.step()
        schedule.step()
    loss.item()  # until a GPU has done it
    return (time.perf_counter() - start) / steps
