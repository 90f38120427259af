"""Data parallel by fully_shard: each rank has a shard of parameters, gradients and optimizer state."""

from __future__ import annotations

from runner.parallel import Setting
from runner.parallel.compose import compose
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


def fsdp(task: Task, setting: Setting) -> Trainer:
    """Shard the model over the mesh's ``data`` dimension, or ``shard`` with replicas."""
    return compose(task, setting, shard=True)
