"""Data parallel by fully_shard: each rank has a shard of parameters, gradients and optimizer state."""

from __future__ import annotations

from runner.parallel import Setting
from runner.parallel.mesh import degree
from runner.parallel.sharded import ShardedTrainer, materialize_sharded, on_meta, parallelize
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


def fsdp(task: Task, setting: Setting, *, shard: bool = True) -> Trainer:
    """Shard the task's model as the options say, in the stages of a pipeline or without one, and return what trains it.

    Args:
        shard: whether data-parallel ranks have a shard of each parameter; otherwise they have replicas.
    """
    if degree(setting.mesh, "pipeline") > 1:
        from runner.parallel.pipeline.pipeline import pipeline  # imports torch's schedules

        return pipeline(task, setting, shard=shard)
    model = on_meta(task, setting)
    parallelize(model, task, setting, shard=shard)
    materialize_sharded(model, task, setting)
    return ShardedTrainer(task, model, setting, [model])
