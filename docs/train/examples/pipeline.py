"""A loop of one's own for a pipeline: its schedule computes a whole step, and the script what is around it.

python pipeline.py
mpirun -np 2 python -m runner pipeline.py --pp 2 --micro-batches 4
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

import runner

INPUTS = 8


@dataclass(frozen=True, kw_only=True)
class Options(runner.Settings):
    epochs: int = 5
    batch_size: int = 32
    width: int = 32


def samples(count: int) -> TensorDataset:
    inputs = torch.rand(count, INPUTS, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))


def main() -> None:
    run = runner.start(Options.from_args())
    options = run.settings
    torch.manual_seed(options.seed)
    data, width = samples(640), options.width
    model = run.prepare(
        nn.Sequential(nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)),
        optimizer=partial(torch.optim.AdamW, lr=options.lr),
        plan=runner.Plan(pipeline=("2", "4")),  # where a stage may begin
        loss=mse_loss,  # which the last stage computes
        data=data,  # by a sample of it the stages are balanced
    )

    for inputs, targets in run.batches(data):
        loss = model.train_step(inputs, targets)  # on all stages alike
        run.log(loss=loss)
        if run.is_last_of_epoch:
            with model.evaluating() as predict:
                run.log(error=(predict(inputs) - targets).abs().mean())


if __name__ == "__main__":
    main()
