"""Data parallel by Horovod: its background thread fuses gradients into larger pieces and averages them by ring-allreduce."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from runner.backends.horovod.library import start_horovod
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel import Setting
from runner.parallel.layers import prepare
from runner.parallel.settings import ParallelSettings
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


class HorovodTrainer(Trainer):
    """Horovod's optimizer waits for the averaged gradients in ``step()``; clipping and weights need them before."""

    def __init__(self, task: Task, model: nn.Module, optimizer: Optimizer, options: ParallelSettings) -> None:
        super().__init__(task, model, optimizer, options)
        self._averaged = {id(one) for one in model.parameters() if one.requires_grad}

    def finish_gradients(self) -> None:
        """Refuse gradients that Horovod has not averaged."""
        for name, one in self.model.named_parameters():
            if one.grad is not None and id(one) not in self._averaged:
                raise UsageError(
                    f"{name} is trained since the training has begun, and Horovod does not average its gradients",
                    fix="train it from the first step, or take --strategy ddp",
                )

    def update(self) -> None:
        if self.options.clip_norm is None and self._factor == 1.0:
            self.optimizer.step()
            return
        optimizer: Any = self.optimizer
        optimizer.synchronize()
        self.weigh()
        if self.options.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        with optimizer.skip_synchronize():
            optimizer.step()


def horovod(task: Task, setting: Setting) -> Trainer:
    """Wrap the optimizer, which averages the gradients before it steps.

    The optimizer's state is not broadcast: a new optimizer has none, and a checkpoint's is sent to all ranks when it is loaded.
    (``hvd.broadcast_optimizer_state`` makes a new optimizer step, which with weight decay changes the weights.)

    Raises:
        UsageError: Horovod is not installed or does not load on a rank, or does not support the model's weights.
    """
    model = task.build(setting.device, setting.dtype)
    with raised_on_all_ranks():
        for name, weight in model.named_parameters():
            if not weight.is_contiguous():
                problem = f"Horovod takes contiguous weights only, and {name} is not (channels last?)"
                raise UsageError(problem, fix="leave that out, or train by DDP")
            if weight.dtype == torch.bfloat16:
                raise UsageError(f"Horovod has no bfloat16, as {name} is", fix="add --dtype float32, or train by DDP")
    prepare(model, task.plan.units(model), setting.options)
    hvd = start_horovod(setting.mesh["data"].size(), setting.device.type)
    averaging = hvd.DistributedOptimizer(
        task.make_optimizer(model.parameters()),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, setting.options.comm_hook),
        backward_passes_per_step=setting.options.micro_batches,
    )
    return HorovodTrainer(task, model, averaging, setting.options)
