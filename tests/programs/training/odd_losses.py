"""Small trainings whose losses or metrics are odd, on all ranks or on one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.training.loop import State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    batch_size: int = 4
    epochs: int = 1
    lr: float = 0.1
    case: str = "plain"
    samples: int = 32


def mean(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def with_weight(weight: float) -> Loss:
    return lambda model, batch: (nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"), weight)


def past_the_wrapper(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss by DDP's inner module, where there is one."""
    return mean(getattr(model, "module", model), batch)


def by_position(model: Any, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A sum with weights that differ by sample, and so by rank."""
    weights = batch[0][:, :1].abs()
    return (weights * (model(batch[0]) - batch[1]).square()).sum(), weights.sum()


class Shifted(nn.Linear):
    """A layer with a parameter that not all ranks use."""

    def __init__(self, *, shifts: bool) -> None:
        super().__init__(3, 1)
        self.shift, self.shifts = nn.Parameter(torch.zeros(1)), shifts

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + (self.shift if self.shifts else 0)


def thaw(state: State) -> None:
    """Train the first layer from the third step on."""
    if state.position.step == 2:
        state.model.get_submodule("0").requires_grad_(True)


def task_of(case: str, run: Run, options: Options) -> Task:
    inputs = torch.randn(options.samples, 3)
    plain = Task(
        model=nn.Linear(3, 1),
        batch_loss=mean,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=TensorDataset(inputs, inputs.sum(1, keepdim=True)),
        drop_last=False,
    )
    steps = 0

    def later(model: Any, batch: Any) -> Any:
        """A pair from the third step on, on rank 1."""
        nonlocal steps
        steps += 1
        return (mean if steps < 3 or run.rank == 0 else with_weight(4.0))(model, batch)

    on_rank_1: dict[str, Loss] = {
        "pair": with_weight(4.0),
        "vector": lambda model, batch: model(batch[0]).flatten(),
        "NaN": with_weight(math.nan),
    }
    everywhere: dict[str, Loss] = {
        "plain": mean,
        "NaN everywhere": with_weight(math.nan),
        "negative": with_weight(-4.0),
        "nothing counts": with_weight(0.0),
        "no number": lambda model, batch: float(mean(model, batch)),
        "later": later,
        "by position": by_position,
        "past the wrapper": past_the_wrapper,
    }
    if case == "unused":
        return replace(plain, model=Shifted(shifts=run.rank == 0))
    if case == "strange":
        own = nn.Parameter(torch.zeros(2))
        return replace(plain, optimizer=lambda parameters: torch.optim.SGD([*parameters, own], lr=options.lr))
    if case == "thaws":
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        net[0].requires_grad_(False)
        return replace(plain, model=net)
    if case == "metrics":
        data = plain.train_data
        return replace(plain, test_data=data, metrics={f"metric_{run.rank}": lambda outputs, batch: outputs.mean()})
    usual = with_weight(4.0) if case == "NaN" else mean
    return replace(plain, batch_loss=everywhere.get(case) or (on_rank_1[case] if run.rank == 1 else usual))


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    fit(run, task_of(options.case, run, options), options, on_step=[thaw] if options.case == "thaws" else [])
