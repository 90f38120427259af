"""A workload whose checkpoints take 12 s, as on a busy file system, and whose steps may take long."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.training.checkpoint import shards
from runner.training.loop import State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

SECONDS = 12.0


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    step_seconds: float = 0.1


def main(run: Run, options: Options) -> None:
    write = shards.write_part

    def write_slowly(*arguments: Any) -> list[Path]:
        time.sleep(SECONDS)
        return write(*arguments)

    def on_step(state: State) -> None:
        (options.checkpoint_dir / "in-step").touch()
        time.sleep(options.step_seconds)

    vars(shards)["write_part"] = write_slowly
    torch.manual_seed(0)
    task = Task(
        model=nn.Linear(4, 1),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=TensorDataset(torch.rand(64, 4), torch.rand(64, 1)),
        is_classification=False,
    )
    fit(run, task, options, on_step=[on_step])
