"""The speed-up of pipeline schedules over one stage, by layers that take a known time because they sleep.

    mpirun -np 4 python -m runner tests.campaigns.speed.pipeline [--micro-batches 9 16] [--milliseconds 10]

A forward pass of a layer takes this long, a backward pass twice: half for the inputs, half for the weights, which zero-bubble
schedules do apart. The formula's speed-up is m p / (m + p - 1).
"""

from __future__ import annotations

import argparse
import statistics
import time
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
from tests.campaigns.speed.spread import spread

LAYERS, WIDTH = 8, 4


class _Sleeping(torch.autograd.Function):
    """Passes a tensor on, after a time or at once; so does the backward pass with its gradient, always after a time."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float, is_at_once: bool) -> Tensor:
        ctx.seconds = seconds
        if not is_at_once:
            time.sleep(seconds)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None, None


class Timed(nn.Module):
    """Adds a weight; the gradients of its inputs and of the weight take as long as the forward pass."""

    def __init__(self, seconds: float, *, is_first: bool) -> None:
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.zeros(WIDTH)), seconds
        self.start = nn.Parameter(torch.zeros(WIDTH)) if is_first else None  # so that its inputs need a gradient, too

    def forward(self, values: Tensor) -> Tensor:
        values = values if self.start is None else values + self.start
        of_weight = _Sleeping.apply(self.weight, self.seconds, True)
        outputs: Tensor = _Sleeping.apply(values, self.seconds, False) + of_weight
        return outputs


def main(run: Run, argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[9, 16])
    parser.add_argument("--milliseconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(argv)
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
            found = [_speed_up(run, options, given.milliseconds / 1000) for _ in range(given.rounds)]
            told = f"{statistics.median(found):8.3f} {formula:8.3f}  {spread(one / formula for one in found)}"
            run.print(f"{run.size:3} {micro_batches:3}  {name:24} {told}")


def _speed_up(run: Run, options: ParallelSettings, seconds: float) -> float:
    """``seconds``: what a layer takes."""
    task = Task(
        model=nn.Sequential(*(Timed(seconds, is_first=layer == 0) for layer in range(LAYERS))),
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
    trainer.step((batch, batch))
    dist.barrier()
    return options.micro_batches * 3 * LAYERS * seconds / (time.perf_counter() - start)
