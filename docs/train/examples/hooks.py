"""Hooks and state of one's own: a moving average of the weights, and the end where the test loss no longer falls.

python hooks.py
mpirun -np 2 python -m runner hooks.py
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import runner


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 50
    batch_size: int = 32
    lr: float = 0.05
    decay: float = runner.option(0.9, "of the moving average")
    patience: int = runner.option(3, "epochs without a smaller test loss, after which the training ends")


class MovingAverage:
    """Of a model's weights, in shards where the model's are."""

    def __init__(self, decay: float) -> None:
        self.decay, self.weights = decay, dict[str, torch.Tensor]()

    @torch.no_grad()
    def __call__(self, state: runner.State) -> None:
        for name, weight in state.model.named_parameters():
            self.weights.setdefault(name, weight.detach().clone()).lerp_(weight, 1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        self.weights = dict(weights)


class EarlyStop:
    """The end of a training whose test loss has not fallen for so many epochs."""

    def __init__(self, patience: int) -> None:
        self.patience, self.best, self.since = patience, float("inf"), 0

    def __call__(self, state: runner.State) -> None:
        loss = state.records[-1].val_loss
        self.best, self.since = (loss, 0) if loss < self.best else (self.best, self.since + 1)
        if self.since >= self.patience:
            state.stop()

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.since = state["best"], state["since"]


def samples(count: int, seed: int) -> TensorDataset:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    noise = torch.randn(count, 1, generator=torch.Generator().manual_seed(seed + 1))
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) + noise)


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    average, early_stop = MovingAverage(options.decay), EarlyStop(options.patience)
    task = runner.Task(
        model=nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)),
        loss=nn.functional.mse_loss,
        optimizer=partial(torch.optim.SGD, lr=options.lr),
        train_data=samples(320, seed=1),
        test_data=samples(160, seed=3),
        is_classification=False,
        state={"average": average, "early_stop": early_stop},
    )
    run.fit(task, on_step=[average], on_epoch=[early_stop])
    sizes = {name: list(weight.shape) for name, weight in average.weights.items()}
    run.print(f"averages {sizes}, {early_stop.since} epochs without a smaller loss")


if __name__ == "__main__":
    main()
