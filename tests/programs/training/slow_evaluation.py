"""A workload of two steps per epoch whose evaluation takes ten minutes. It makes the file "evaluates" when that begins."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from runner.training.loop import State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings


class Slow(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, file: Path) -> None:
        self.file = file
        self.trained = False  # some samples are read before the training, to see their form

    def __len__(self) -> int:
        return 600 * 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.trained:
            self.file.touch()
        time.sleep(1 / 32)
        return torch.zeros(8), torch.zeros(1)


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    batch_size: int = 4


def main(run: Run, options: Options) -> None:
    torch.manual_seed(options.seed)
    data = Slow(options.checkpoint_dir / "evaluates")
    task = Task(
        model=nn.Linear(8, 1),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=options.lr),
        train_data=TensorDataset(torch.rand(16, 8), torch.rand(16, 1)),
        test_data=data,
        units_per_sample=256,
        is_classification=False,
    )

    def has_trained(_: State) -> None:
        data.trained = True

    fit(run, task, options, on_step=[has_trained])
