"""The speed-up of pipeline schedules over one stage, by layers that take a known time because they sleep.

    mpirun -np 4 python -m runner [--backend gloo] tests.campaigns.speed.pipeline [--micro-batches 9 16] [--milliseconds 10] [--compute]

A forward pass of a layer takes this long, a backward pass twice (half of it for the inputs, half for the weights: zero-bubble
schedules do them apart). The formula's speed-up is m p / (m + p - 1). With --compute layers multiply matrices instead, as often
as one rank does in this time, and one stage's time is measured on rank 0 before each step, while the others wait. That needs a
core per rank.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.parallel import Setting, make_trainer
from runner.parallel.mesh import Degrees, lay_out
from runner.parallel.settings import SCHEDULES, ParallelSettings
from runner.parallel.task import Plan, Task
from runner.training.run import Run

LAYERS, WIDTH = 8, 4
Spend = Callable[[], None]  # takes a layer's time


class _Spent(torch.autograd.Function):
    """Passes a tensor on, after a time or at once; so does the backward pass with its gradient, always after a time."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, spend: Spend, is_at_once: bool) -> Tensor:
        ctx.spend = spend
        if not is_at_once:
            spend()
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.spend()
        return gradients[0], None, None


class Timed(nn.Module):
    """Adds a weight; the gradients of its inputs and of the weight take as long as the forward pass."""

    def __init__(self, spend: Spend, *, is_first: bool) -> None:
        super().__init__()
        self.weight, self.spend = nn.Parameter(torch.zeros(WIDTH)), spend
        self.start = nn.Parameter(torch.zeros(WIDTH)) if is_first else None  # so that its inputs need a gradient, too

    def forward(self, values: Tensor) -> Tensor:
        values = values if self.start is None else values + self.start
        outputs: Tensor = _Spent.apply(values, self.spend, False) + _Spent.apply(self.weight, self.spend, True)
        return outputs


def _products(run: Run, seconds: float) -> Spend:
    """As many matrix products as rank 0 computes in this time."""
    torch.set_num_threads(1)
    left, right, result = torch.rand(3, 192, 192)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right, out=result)

    products(200)
    start = time.perf_counter()
    products(200)
    counts = [round(200 * seconds / (time.perf_counter() - start))]
    dist.broadcast_object_list(counts)
    return lambda: products(counts[0])


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[9, 16])
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compute", action="store_true")
    given = parser.parse_args(argv)
    seconds = given.milliseconds / 1000
    spend = _products(run, seconds) if given.compute else lambda: time.sleep(seconds)
    run.print("  p   m  schedule                 speed-up  formula  ratio (smallest to largest)")
    for micro_batches in given.micro_batches:
        formula = micro_batches * run.size / (micro_batches + run.size - 1)
        for name, schedule in SCHEDULES.items():
            if "interleaved" in name and micro_batches % run.size:
                continue
            if name == "dualpipev" and micro_batches < 2 * run.size:
                continue
            options = ParallelSettings(
                pp=run.size, pp_schedule=name, stages_per_rank=schedule.stages, micro_batches=micro_batches
            )
            found = [_speed_up(run, options, spend, None if given.compute else seconds) for _ in range(given.rounds)]
            ratios = [one / formula for one in found]
            run.print(
                f"{run.size:3} {micro_batches:3}  {name:24} {statistics.median(found):8.3f} {formula:8.3f}  "
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            )


def _speed_up(run: Run, options: ParallelSettings, spend: Spend, seconds: float | None) -> float:
    """``seconds``: what a layer takes; None if that is to be measured."""
    task = Task(
        model=nn.Sequential(*(Timed(spend, is_first=layer == 0) for layer in range(LAYERS))),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        train_data=TensorDataset(torch.zeros(4, WIDTH), torch.zeros(4, WIDTH)),
        is_classification=False,
        plan=Plan(pipeline=("*",)),
    )
    layout = lay_out(run.job.topology, Degrees.of(run.size, pipeline=options.pp))
    mesh = replace(run, layout=layout).mesh
    setting = Setting(device=run.device, dtype=torch.float32, mesh=mesh, options=options)
    trainer = make_trainer(task, setting)
    batch = torch.zeros(options.micro_batches, WIDTH)
    trainer.step((batch, batch))  # agrees on shapes
    dist.barrier()
    start = time.perf_counter()
    for _ in range(options.micro_batches * 3 * LAYERS if seconds is None and run.is_main else 0):
        spend()
    dist.barrier()  # those who wait sleep
    alone = options.micro_batches * 3 * LAYERS * seconds if seconds else time.perf_counter() - start
    start = time.perf_counter()
    trainer.step((batch, batch))
    dist.barrier()
    return alone / (time.perf_counter() - start)
