"""A workload whose ranks would begin with weights and buffers of their own, as they are seeded by rank."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.training.loop import Plan, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

PLAN = Plan(shard=("*",), tensor={"0": ColwiseParallel(), "2": RowwiseParallel()}, pipeline=("2", "3"))


class Scaled(nn.Module):
    """Has a buffer that no checkpoint has, and draws by NumPy; or from what only this rank knows."""

    scale: Tensor

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by
        self.register_buffer("scale", torch.empty(16), persistent=False)
        self.weight = nn.Parameter(torch.empty(16))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.scale.copy_(torch.from_numpy(numpy.random.rand(16)))
        own = random.random() if self.by != "environment" else float(hash(os.environ["OMPI_COMM_WORLD_RANK"]) % 1000)
        self.weight.data.fill_(own)

    def forward(self, values: Tensor) -> Tensor:
        return values * self.scale * self.weight


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    by: str = option("model", "", choices=("model", "factory", "environment", "weights", "shape"))


def main(run: Run, options: Options) -> None:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.rand(64, 16, generator=generator), torch.rand(64, 1, generator=generator))
    torch.manual_seed(options.seed + run.rank)
    numpy.random.seed(options.seed + run.rank)
    random.seed(options.seed + run.rank)

    def make() -> nn.Module:
        wide = 64 + run.rank if options.by == "shape" else 64
        layers = (
            nn.Linear(16, wide),
            nn.ReLU(),
            nn.Linear(wide, 16),
            nn.Sequential(Scaled(options.by), nn.Linear(16, 1)),
        )
        return nn.Sequential(*layers)

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in make().state_dict().items():
            yield name, tensor + run.rank

    model: Any = make if options.by in ("factory", "environment") else make()
    task = Task(
        model=model,
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=data,
        is_classification=False,
        weights=weights if options.by == "weights" else None,
        plan=PLAN,
    )
    fit(run, task, options)
