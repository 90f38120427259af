"""A workload whose steps do not call all modules: which ones is decided by rank, by the rank's random numbers, or by all alike."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.training.loop import Plan, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

PLAN = Plan(shard=("layers.*",), pipeline=("layers.*", "head"))


class Net(nn.Module):
    def __init__(self, run: Run, by: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) if number % 2 else Wide() for number in range(6))
        self.head = nn.Linear(8, 3)
        self.run, self.by = run, by

    def forward(self, values: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            left_out = {
                "rank": self.run.rank == number,
                "random": random.random() < 0.5,
                "common": self.run.common_random.random() < 0.5,
                "gradient": False,
            }
            if self.by == "gradient" and self.run.rank == number:
                with torch.no_grad():
                    values = layer(values)
            elif not self.training or not left_out[self.by]:
                values = layer(values)
        outputs: Tensor = self.head(values)
        return outputs


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = self.down(self.up(values).tanh())
        return outputs


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    by: str = option("", "", choices=("rank", "random", "common", "gradient"))
    allowed: bool = option(False, "a step may leave parameters unused")


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    data = TensorDataset(torch.rand(64, 8), torch.randint(3, (64,)))
    task = Task(
        model=Net(run, options.by),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=data,
        test_data=data,
        plan=PLAN,
        find_unused_parameters=options.allowed,
    )
    fit(run, task, options)
