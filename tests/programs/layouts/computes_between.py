"""A plan cuts this model where ``forward`` computes between two modules: ``computes_between --what flattens|doubles``."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.parallel.task import Plan
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings


class Flattens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
        self.head = nn.Linear(8, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(self.features(values).flatten(1))


class Doubles(Flattens):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, values: Tensor) -> Tensor:
        return self.head(2 * self.features(values))


MODELS = {"flattens": Flattens, "doubles": Doubles}


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    what: str = option("", "", choices=MODELS)


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    data = TensorDataset(torch.rand(64, 1, 6, 6), torch.randint(2, (64,)))
    plan = Plan(pipeline=("features.*", "head"))
    model = MODELS[options.what]()
    fit(
        run,
        Task(model=model, loss=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD, train_data=data, plan=plan),
        options,
    )
