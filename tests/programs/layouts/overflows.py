"""A workload in half precision whose gradients overflow in one rank's part of the model; prints what all ranks make of it."""

import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from parity import SAMPLES, Net, loss_of, plan
from torch.utils.data import TensorDataset

from runner.base.settings import option
from runner.parallel import Setting, make_trainer
from runner.parallel.task import Task
from runner.training.run import Run
from runner.training.settings import StepSettings


@dataclass(frozen=True, kw_only=True)
class Options(StepSettings):
    """Of this workload."""

    only_head: bool = option(False, "nothing else is trained, so that a stage may have no gradient")


def main(run: Run, options: Options) -> None:

    def net() -> Net:
        model = Net()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not options.only_head or name.startswith("head"))
        return model

    torch.manual_seed(0)
    data = TensorDataset(torch.zeros(SAMPLES, 4, dtype=torch.long), torch.zeros(SAMPLES, 4, dtype=torch.long))
    task = Task(
        model=net,
        loss=loss_of,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
        train_data=data,
        plan=plan(),
    )
    setting = Setting(device=run.device, dtype=torch.float32, mesh=run.mesh, options=options)
    trainer = make_trainer(task, setting)
    assert trainer.scaler is not None
    batch = torch.zeros(8, 4, dtype=torch.long)
    for _ in range(4):  # the scale begins too high
        trainer.step((batch, batch))
    found: list[Any] = [trainer.scaler.get_scale()]
    for overflows in (False, True, False):
        trainer.optimizer.zero_grad()
        trainer.backward((batch, batch))
        # The last rank has a part of it, or one of its own stage.
        trained = [one for _, one in trainer.model.named_parameters() if one.grad is not None]
        weight = next(iter(trained), next(trainer.model.parameters()))
        if overflows and run.rank == run.size - 1:
            own(weight.grad)[0] = torch.inf
        before = own(weight).clone()
        trainer.update()
        found.append((trainer.scaler.get_scale(), not own(weight).equal(before)))
    everyone: list[Any] = [None] * run.size
    dist.all_gather_object(everyone, found)
    run.print("found " + json.dumps(everyone))


def own(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()
    return local
