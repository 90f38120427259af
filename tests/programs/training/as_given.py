"""A small training by ``fit``, of a model that ``--case`` makes: which numbers it gives, and what is left of the model as it was given."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import TensorDataset

import runner


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    """Of this workload."""

    epochs: int = 1
    global_batch_size: int | None = 64
    lr: float = 1e-12


def main(run: runner.Run, options: Options) -> None:
    """Train; one step sees all samples, which are those of the evaluation."""
    torch.manual_seed(options.seed)
    cross_entropy = nn.functional.cross_entropy
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 40, (64,)))
    styles = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    task = runner.Task(
        model=nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 40)),
        loss=cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=data,
        test_data=data,
        metrics={"ce": cross_entropy},
        plan=runner.Plan(shard=("*",), pipeline=("0", "2"), tensor=styles),
    )
    run.fit(task)
