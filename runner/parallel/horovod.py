"""Data parallel by Horovod's ring-allreduce: gradients are averaged by its background thread, fused into larger pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from runner.comm.horovod.library import start_horovod
from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.parallel import GradientOptions, OptimizerFactory


def horovod(
    model: nn.Module, optimizer: OptimizerFactory, mesh: DeviceMesh, gradients: GradientOptions
) -> tuple[nn.Module, Optimizer]:
    """Leave the model as it is on rank 0, and have the optimizer average the gradients before it steps.

    The optimizer is new on every rank, and a checkpoint is read by rank 0 for all, so its state is not broadcast.
    (``hvd.broadcast_optimizer_state`` makes a new optimizer step, which with weight decay moves the weights.)

    Raises:
        UsageError: Horovod is not installed, or does not load, or cannot take the model's weights.
    """
    odd = next((name for name, weight in model.named_parameters() if not weight.is_contiguous()), None)
    if odd is not None:
        raise UsageError(
            f"Horovod takes contiguous weights only, and {odd} is not (channels last?); leave that out, or train "
            "by DDP",
            told_by_all=True,
        )
    hvd = start_horovod(mesh.size(), mesh.device_type)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    own = optimizer(model.parameters())
    averaging: Optimizer = hvd.DistributedOptimizer(
        own,
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, gradients.compression),
        backward_passes_per_step=gradients.micro_batches,
    )
    return model, averaging
