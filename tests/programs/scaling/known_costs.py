"""A workload whose steps cost what is known: it computes c·batch/256 and, with others, communicates a + b·ranks, by sleeping."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from runner.base.settings import option
from runner.training.run import Run
from runner.training.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Seconds."""

    c: float = 1.6
    a: float = 0.02
    b: float = 0.005
    data: str = option("none", choices=("none",))


def main(run: Run, options: Options) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(options.max_steps or 10):
        time.sleep(options.c * options.batch_size / 256)
        if run.size > 1:
            time.sleep(options.a + options.b * run.size)
        weight.grad = torch.ones(1)
        optimizer.step()
