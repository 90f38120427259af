"""A training with those fields of a task that are asked for, and hooks that stop it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.training.loop import Task, fit
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.summary import State


class Steps:
    """State of the task's own: how many steps were done, and a mean of the weights."""

    def __init__(self) -> None:
        self.done, self.mean = 0, torch.zeros(4)

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done, self.mean = state["done"], state["mean"]


def hill(step: int, total: int) -> float:
    """It learns at first, and goes away from what it has learned in the second half."""
    return 1.0 if 2 * step < total else -1.0


def largest(outputs: Tensor, targets: Tensor) -> Tensor:
    return -(outputs - targets).abs().mean()


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    total: bool = option(False, "a schedule that is given the total of steps")
    warmup: int = 0
    evaluate_every: int = 0
    keep_best: str = ""
    stops_at: int = option(0, "the step after which rank 0 stops")
    own_state: bool = option(False, "state of the task's own")
    resets: bool = option(False, "its load_state_dict is missing")


def main(run: Run, options: Options) -> None:
    """Train."""
    torch.manual_seed(options.seed)
    inputs = torch.randn(72, 4, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    steps = Steps()
    more: dict[str, Any] = {"state": {"steps": object() if options.resets else steps}} if options.own_state else {}
    task = Task(
        model=nn.Linear(4, 1),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=TensorDataset(*data[:64]),
        test_data=TensorDataset(*data[64:]),
        is_classification=False,
        metrics={"largest": largest},
        schedule=hill if options.total else None,
        warmup=options.warmup,
        evaluate_every=options.evaluate_every,
        **({"keep_best": options.keep_best} if options.keep_best else {}),
        **more,
    )

    def count(state: State) -> None:
        steps.done += 1
        steps.mean = steps.mean * 0.9 + 0.1 * inputs[state.position.step % 8]
        if state.position.step == options.stops_at and run.is_main:
            state.stop()

    fit(run, task, options, on_step=[count])
    run.print(f"own state: {steps.done} {steps.mean.tolist()}")
