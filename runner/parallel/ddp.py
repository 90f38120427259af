"""Data parallel: the model on every rank, gradients averaged while the backward pass goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

if TYPE_CHECKING:
    from runner.parallel import GradientOptions, OptimizerFactory


def ddp(
    model: nn.Module, optimizer: OptimizerFactory, mesh: DeviceMesh, gradients: GradientOptions
) -> tuple[nn.Module, Optimizer]:
    """Wrap the model in DistributedDataParallel over the mesh, which has one dimension."""
    wrapped = DistributedDataParallel(model, process_group=mesh.get_group(), gradient_as_bucket_view=True)
    if gradients.compression == "fp16":
        wrapped.register_comm_hook(mesh.get_group(), fp16_compress_hook)
    return wrapped, optimizer(wrapped.parameters())
