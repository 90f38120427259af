"""Training speed by Horovod's benchmark protocol: warm-up batches, then iterations of some batches each.

Protocol and terms are those of Horovod's ``pytorch_synthetic_benchmark.py``, so that results compare with published ones:
the mean over iterations, plus or minus 1.96 standard deviations, per rank and in total.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, replace

from runner.backends.timing import own_seconds_per_call
from runner.parallel import make_trainer
from runner.parallel.task import Task
from runner.parallel.trees import to_device
from runner.training.data.feeds import feed_of, with_batch_of
from runner.training.data.source import source_of
from runner.training.run import Run
from runner.training.same_task import check_task
from runner.training.settings import StepSettings


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How many batches to train on, and how many to time together."""

    warmup_batches: int = 10
    batches_per_iteration: int = 10
    iterations: int = 10


@dataclass(frozen=True)
class Speed:
    """Samples per second: the mean per rank, its 95 % interval, and the total of all ranks."""

    per_rank: float
    interval: float
    total: float


def benchmark(run: Run, task: Task, options: StepSettings, protocol: Protocol) -> Speed:
    """Train repeatedly on one batch per rank, and report the speed. Collective."""
    if run.train_by is not None:
        taken: Speed = run.train_by(run, task, options)
        return taken
    device = run.device
    source = source_of(task)
    options = with_batch_of(source, options)
    looks = check_task(run, task, options)
    trainer = make_trainer(task, run.setting(options.dtype, options, looks["training"].batch))
    first = next(feed_of(run, source, replace(options, workers=0)).batches(0, 0))
    batch = to_device(first.value, device, trainer.dtype)

    board, number = run.job.board, itertools.count(1)
    batches = protocol.warmup_batches + protocol.iterations * protocol.batches_per_iteration

    def step() -> None:
        trainer.step(batch)
        board.step(next(number), batches, 1, 1)

    one = "rank" if run.data_size == run.size else "data-parallel rank"
    run.print(f"batch size: {options.batch_size} per {one}, {run.size} ranks on {device.type}")
    with board.training():
        own_seconds_per_call(step, protocol.warmup_batches, device)
        speeds = []
        for iteration in range(protocol.iterations):
            speeds.append(options.batch_size / own_seconds_per_call(step, protocol.batches_per_iteration, device))
            run.print(f"iteration {iteration + 1}: {speeds[-1]:.1f} {task.unit}/s per {one}")
    mean, interval = statistics.fmean(speeds), 1.96 * statistics.pstdev(speeds)
    total, spread = run.sum(mean, interval)
    run.print(f"{task.unit}/s per {one}: {mean:.1f} ± {interval:.1f}")
    run.print(f"total {task.unit}/s on {run.size} rank(s): {total:.1f} ± {spread:.1f}")
    return Speed(mean, interval, total)
