"""A workload: one weight under local SGD with an outer optimizer, and the same by hand. Prints by how much they differ.

Rank r pulls the weight towards r. By hand: after each two steps the outer gradient is the last average minus the new one, and
Nesterov's method follows it: m = 0.9 m + g, weight = last - 0.7 (g + 0.9 m).
"""

import torch
from deviations import largest
from torch import nn
from torch.utils.data import TensorDataset

from runner.parallel import Setting, make_trainer
from runner.parallel.settings import ParallelSettings
from runner.parallel.task import Task
from runner.training.run import Run

STEPS, PERIOD, LR = 12, 2, 0.1


def main(run: Run, argv: list[str]) -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, 3.0)
    task = Task(
        model=model,
        loss=nn.MSELoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR),
        train_data=TensorDataset(torch.zeros(1)),
    )
    options = ParallelSettings(strategy="local-sgd", sync_every=PERIOD, outer_optimizer="nesterov")
    trainer = make_trainer(task, Setting(device=run.device, dtype=torch.float64, mesh=run.mesh, options=options))
    last, momentum, weights = 3.0, 0.0, [3.0] * run.size
    deviation = 0.0
    ones = torch.ones(4, 1, dtype=torch.float64)
    for step in range(1, STEPS + 1):
        trainer.step((ones, run.rank * ones))
        weights = [weight - LR * 2 * (weight - rank) for rank, weight in enumerate(weights)]
        if step % PERIOD == 0:
            gradient = last - sum(weights) / run.size
            momentum = 0.9 * momentum + gradient
            last -= 0.7 * (gradient + 0.9 * momentum)
            weights = [last] * run.size
        (found,) = (weight.item() for weight in trainer.model.parameters())
        deviation = largest([deviation, abs(found - weights[run.rank])])
    print(f"rank {run.rank}: {deviation:.1e} of {last:.3f}")
