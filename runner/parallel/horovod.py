"""Data parallel by Horovod's ring-allreduce: gradients are averaged by its background thread, fused into larger pieces."""

from __future__ import annotations

from typing import Any

from torch import nn

from runner.comm.horovod.library import start_horovod
from runner.errors import UsageError, raised_on_all_ranks
from runner.parallel import Setting
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


class HorovodTrainer(Trainer):
    """Horovod's optimizer waits for the averages when it steps; to be clipped they have to be there before."""

    def update(self) -> None:
        """As of every trainer."""
        if self.options.clip_norm is None:
            self.optimizer.step()
            return
        optimizer: Any = self.optimizer
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        with optimizer.skip_synchronize():
            optimizer.step()


@raised_on_all_ranks()
def horovod(task: Task, setting: Setting) -> Trainer:
    """Leave the model as it is on rank 0, and have the optimizer average the gradients before it steps.

    The optimizer is new on every rank, and a checkpoint is read by rank 0 for all, so its state is not broadcast.
    (``hvd.broadcast_optimizer_state`` makes a new optimizer step, which with weight decay moves the weights.)

    Raises:
        UsageError: Horovod is not installed, or does not load, or cannot take the model's weights.
    """
    model = task.build(setting.device, setting.dtype)
    odd = next((name for name, weight in model.named_parameters() if not weight.is_contiguous()), None)
    if odd is not None:
        raise UsageError(
            f"Horovod takes contiguous weights only, and {odd} is not (channels last?); leave that out, or train by DDP",
        )
    hvd = start_horovod(setting.mesh["data"].size(), setting.device.type)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    averaging = hvd.DistributedOptimizer(
        task.optimizer(model.parameters()),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, setting.options.compression),
        backward_passes_per_step=setting.options.micro_batches,
    )
    return HorovodTrainer(task, model, averaging, setting.options)
