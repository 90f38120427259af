"""A workload whose checkpoint is known to the last bit, whatever torch trains it, on one, two or four ranks.

Weights are bfloat16, two of them tied; a buffer and Adam's steps have no dimension. Adam's learning rate is 0 and its averages are
halved, and all gradients are small multiples of powers of two, so nothing is ever rounded. This wrote tests/data/checkpoints,
each by the torch of its name:

    cd tests/programs/training
    mpirun -np 2 python -m runner --backend gloo exact --strategy STRATEGY --max-steps 2 --checkpoint-dir FOLDER
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.training.settings import Settings

if TYPE_CHECKING:
    from runner.training.run import Run


class Tied(nn.Module):
    """Divides its 5 × 4 weight among two ranks as 3 and 2 rows; the bias of 1 leaves the second with none."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.shift = nn.Linear(4, 5, bias=False), nn.Linear(4, 5, bias=False), nn.Linear(5, 1)
        self.outer.weight = self.inner.weight
        self.register_buffer("calls", torch.tensor(7))
        for number, parameter in enumerate(self.parameters()):
            values = torch.arange(parameter.numel()) % 7 - 3 + number
            parameter.data = values.reshape(parameter.shape).to(torch.bfloat16) / 4

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.shift(self.inner(inputs) + self.outer(inputs))
        return outputs


def inputs() -> Tensor:
    """Eight samples."""
    return (torch.arange(32).reshape(8, 4) % 5 - 2).to(torch.bfloat16)


def loss(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.mean()


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.0, betas=(0.5, 0.5))


def tensors_after(steps: int) -> dict[str, Tensor]:
    """What a checkpoint then holds, from a training without the runner."""
    model = Tied().bfloat16()
    optimizer = adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(inputs()), inputs()).backward()
        optimizer.step()
    of_model = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    of_optimizer = {
        f"optimizer.{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    return of_model | of_optimizer


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    epochs: int = 9


def main(run: Run, options: Options) -> None:
    # Here, as unit tests take the rest.
    from runner.training.loop import Task, fit

    data = TensorDataset(inputs(), torch.zeros(8, 1))
    options = replace(options, dtype="bfloat16", batch_size=8 // run.size)
    fit(run, Task(model=Tied(), loss=loss, optimizer=adam, train_data=data, is_classification=False), options)
