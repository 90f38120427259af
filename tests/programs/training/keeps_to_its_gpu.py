"""A sharded workload that saves in the background: is there a context on another GPU than the rank's?"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from runner.training.loop import Plan, Task, fit
from runner.training.run import Run
from runner.training.settings import Settings

PLAN = Plan(shard=("*",))


def main(run: Run, options: Settings) -> None:
    torch.manual_seed(0)
    task = Task(
        model=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=TensorDataset(torch.rand(16, 8), torch.rand(16, 8)),
        is_classification=False,
        plan=PLAN,
    )
    fit(run, task, options)
    others = [index for index in range(torch.cuda.device_count()) if index != run.device.index]
    print(
        f"rank {run.rank}: contexts on others: {[index for index in others if torch._C._cuda_hasPrimaryContext(index)]}"
    )
