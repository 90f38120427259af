"""ZeRO stage 1: DDP, and each rank has the optimizer's state of some parameters only, which it updates for all."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.4, of the optimizers beside this one
    from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from runner.parallel import Setting
from runner.parallel.layers import prepare
from runner.parallel.state import StateDict, load_state, merged, restricted, state_of
from runner.parallel.strategies.ddp import DdpTrainer
from runner.parallel.support import check_zero, supported_by
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer


class ZeroTrainer(DdpTrainer):
    """The optimizer's state is sharded among the ranks; each has the full model."""

    is_sharded = True
    optimizer: ZeroRedundancyOptimizer

    def state(self) -> StateDict:
        """As in the base class."""
        return merged(self.with_scaler(state_of(self.model, self._own)), self.replicas)

    def check_state(self) -> None:
        """As in the base class."""
        state_of(self.model, self._own)

    def load(self, state: StateDict) -> None:
        """As in the base class."""
        own = {name for group in state_of(self.model, self._own).groups for name in group["params"]}
        load_state(self.model, self._own, restricted(state, own))
        for outer, inner in zip(self.optimizer.param_groups, self._own.param_groups, strict=True):
            outer.update({name: value for name, value in inner.items() if name != "params"})
        self.load_scaler(state)

    @property
    def _own(self) -> Optimizer:
        """The optimizer of this rank's parameters."""
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
