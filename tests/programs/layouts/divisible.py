"""A small network that can be sharded in every way, as its plan says."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.parallel.task import Plan
from runner.training.loop import State, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

PLAN = Plan(shard=("*",), tensor={"0": ColwiseParallel(), "2": RowwiseParallel()}, pipeline=("*",))


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """Of this workload."""

    flip: str | None = option(None, "the parameter of which a bit is flipped, after the second step")
    on: int | None = option(None, "the rank where that happens", parse=int)


def main(run: Run, options: Options) -> None:
    run.print("began")
    torch.manual_seed(options.seed)
    task = Task(
        model=lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 8), nn.Linear(8, 2)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=options.lr),
        train_data=TensorDataset(torch.rand(256, 16), torch.rand(256, 2)),
        is_classification=False,
        plan=PLAN,
    )

    def after(state: State) -> None:
        if state.position.step == 2 and run.rank == options.on:
            parameter = state.model.get_parameter(options.flip).data
            local: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.view(torch.int32).view(-1)[0] ^= 1

    fit(run, task, options, on_step=[after])
