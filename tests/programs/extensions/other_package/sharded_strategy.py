"""A strategy of another package: fully sharded data parallel, by torch's own fully_shard."""

from torch.distributed.fsdp import fully_shard

from runner.parallel import Setting
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


class ShardedTrainer(Trainer):
    """Every rank has a part of each parameter."""

    is_sharded = True


def sharded(task: Task, setting: Setting) -> Trainer:
    """Shard the units of the task's plan one by one, and what is left as one more."""
    model = task.build(setting.device, setting.dtype)
    for unit in task.plan.units(model):
        fully_shard(unit, mesh=setting.mesh["data"])
    fully_shard(model, mesh=setting.mesh["data"])
    return ShardedTrainer(task, model, task.optimizer(model.parameters()), setting.options)
