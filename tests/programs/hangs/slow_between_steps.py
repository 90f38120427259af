"""A healthy workload that takes longer than it may for a step: in a rank's hook of a step, all ranks' of the epoch, and by many micro-batches."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.training.loop import State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

LONG = 12.0  # seconds; with --hang-timeout 7


class Slow(nn.Linear):
    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        if 8 < self.calls <= 12:  # the micro-batches of the third step
            time.sleep(LONG / 4)
        return super().forward(inputs)


def main(run: Run, options: Settings) -> None:
    torch.manual_seed(0)

    def on_step(state: State) -> None:
        if state.position.step == 1 and run.rank == 1:
            time.sleep(LONG)

    task = Task(
        model=Slow(4, 1),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=TensorDataset(torch.rand(64, 4), torch.rand(64, 1)),
        is_classification=False,
    )
    fit(run, task, options, on_step=[on_step], on_epoch=[lambda _: time.sleep(LONG)])
