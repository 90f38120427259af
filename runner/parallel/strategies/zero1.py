"""ZeRO stage 1: DDP, and each rank has the optimizer's state of some parameters only, which it updates for all."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.4, of the optimizers beside this one
    from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from runner.parallel import Setting
from runner.parallel.layers import prepare
from runner.parallel.state import StateDict, merged, restricted
from runner.parallel.strategies.ddp import DdpTrainer
from runner.parallel.support import check_zero, supported_by
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


class ZeroTrainer(DdpTrainer):
    """The optimizer's state is sharded among the ranks; each has the full model."""

    is_sharded = True
    optimizer: ZeroRedundancyOptimizer

    def state(self) -> StateDict:
        return merged(super().state(), self.replicas)

    def load(self, state: StateDict) -> None:
        own = {name for group in super().state().groups for name in group["params"]}
        super().load(restricted(state, own))
        for outer, inner in zip(self.optimizer.param_groups, self.local_optimizer.param_groups, strict=True):
            outer.update({name: value for name, value in inner.items() if name != "params"})

    @property
    def local_optimizer(self) -> Optimizer:
        own: Optimizer = self.optimizer.optim
        return own


def zero1(task: Task, setting: Setting) -> Trainer:
    """Wrap the model in DDP, and the optimizer in ZeroRedundancyOptimizer, over the mesh's ``data`` dimension."""
    model = task.build(setting.device, setting.dtype)
    check_zero(model)
    prepare(model, task.plan.units(model), setting.options)
    made = task.make_optimizer(model.parameters())  # has no state yet; its groups have all options
    with supported_by("--strategy zero1"):
        optimizer = ZeroRedundancyOptimizer(
            made.param_groups, optimizer_class=type(made), process_group=setting.mesh.get_group("data")
        )
    return ZeroTrainer(task, model, optimizer, setting)
