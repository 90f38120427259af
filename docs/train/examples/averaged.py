"""A loop of one's own with a schedule of the learning rate, and a moving average of the weights that is evaluated.

python averaged.py
mpirun -np 2 python -m runner averaged.py --strategy fsdp
mpirun -np 2 python -m runner averaged.py --resume --epochs 12
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

import runner


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 8
    batch_size: int = 32
    lr: float = 0.1
    warmup: int = runner.option(10, "steps in which the learning rate grows")
    decay: float = runner.option(0.8, "of the moving average")


class MovingAverage:
    """Of a module's weights, in shards where the module's are."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.decay = module, decay
        self.weights = {name: weight.detach().clone() for name, weight in module.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        for name, weight in self.module.named_parameters():
            self.weights[name].lerp_(weight, 1 - self.decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module has the average's weights meanwhile."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, weight in self.module.named_parameters():
            own = weight.detach().clone()
            weight.copy_(self.weights[name])
            self.weights[name] = own

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.weights

    def load_state_dict(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = dict(weights)


def samples(count: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=draw)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) + torch.randn(count, 1, generator=draw))


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    model = run.prepare(network, optimizer=partial(torch.optim.SGD, lr=options.lr))
    schedule = LambdaLR(model.optimizer, lambda step: min(1.0, (step + 1) / options.warmup))
    average = MovingAverage(model.module, options.decay)
    run.register(schedule=schedule, average=average)  # a resumed run continues both
    test_inputs, test_targets = samples(160, seed=3).tensors

    for inputs, targets in run.batches(samples(320, seed=1)):
        loss = mse_loss(model(inputs), targets)
        model.backward(loss)
        model.step()
        schedule.step()
        average.update()
        run.log(loss=loss)
        if run.is_last_of_epoch:
            losses = {}
            share = slice(run.data_rank, None, run.data_size)  # of the test data, for this rank
            for name, weights in {"val_loss": None, "val_average": average}.items():
                with weights.in_place() if weights else torch.no_grad(), model.evaluating() as predict:
                    outputs = predict(test_inputs[share].to(inputs))
                total, count = run.sum(float((outputs.cpu() - test_targets[share]).square().sum()), len(outputs))
                losses[name] = total / count
            run.log(**losses)  # printed in the epoch's line


if __name__ == "__main__":
    main()
