"""A workload: one step of three micro-batches by fsdp. Prints how many numbers of gradients a rank has before each of them."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from runner.parallel import Setting, make_trainer
from runner.parallel.settings import ParallelSettings
from runner.parallel.task import Plan, Task
from runner.training.run import Run


def main(run: Run, argv: list[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    found: list[int] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        gradients = [one.grad.to_local() for one in model.parameters() if one.grad is not None]
        found.append(sum(one.numel() for one in gradients))
        return nn.functional.mse_loss(outputs, targets)

    task = Task(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        train_data=TensorDataset(torch.zeros(1)),
        plan=Plan(shard=("*",)),
    )
    options = ParallelSettings(strategy="fsdp", micro_batches=3, precision="bf16")
    trainer = make_trainer(task, Setting(device=run.device, dtype=torch.float32, mesh=run.mesh, options=options))
    trainer.step((torch.ones(6, 8), torch.ones(6, 8)))
    print(f"rank {run.rank}: {found}")
