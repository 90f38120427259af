"""Data parallel by DDP: every rank has the whole model; gradients are averaged during the backward pass."""

from __future__ import annotations

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from runner.parallel import Setting
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


def ddp(task: Task, setting: Setting) -> Trainer:
    """Wrap the model in DistributedDataParallel over the mesh's ``data`` dimension."""
    model = task.build(setting.device, setting.dtype)
    group = setting.mesh.get_group("data")
    wrapped = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    if setting.options.compression == "fp16":
        wrapped.register_comm_hook(group, fp16_compress_hook)
    optimizer = task.optimizer(model.parameters())
    return Trainer(task, model, optimizer, setting.options, wrapped=wrapped, no_sync=wrapped.no_sync)
