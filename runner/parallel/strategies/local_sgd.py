"""Local SGD: each rank trains by itself, and the weights are averaged every N steps, by what each has computed of since then.

With an outer optimizer it is DiLoCo: the average's distance from the last one is taken as a gradient, which Nesterov's method
follows (Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023, arXiv:2311.08105).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.optim import Optimizer

from runner.parallel import Setting
from runner.parallel.layers import prepare
from runner.parallel.state import StateDict
from runner.parallel.step_loss import StepLoss
from runner.parallel.task import Task
from runner.parallel.trainer import Trainer
from runner.versions.torch_private import multiply

_OUTER_LR, _OUTER_MOMENTUM = 0.7, 0.9  # of the paper, section 3


class LocalTrainer(Trainer):
    """Averages weights and not gradients.

    An evaluation and a checkpoint are of the average, so they average, too. A checkpoint has one optimizer state: the average,
    from which all ranks continue, whether they start again or not.
    """

    averages = False

    def __init__(self, task: Task, model: nn.Module, optimizer: Optimizer, setting: Setting) -> None:
        super().__init__(task, model, optimizer, setting.options)
        self.period = setting.options.sync_every
        self._group = setting.mesh.get_group("data")
        # Since the last average: steps, what they have computed of by their weights, and what they have trained.
        self._steps, self._seen = 0, 0.0
        self._trained: dict[str, nn.Parameter] = {}
        self._last: dict[str, nn.Parameter] = {}
        self._outer: Optimizer | None = None
        if setting.options.outer_optimizer == "nesterov":
            self._last = {
                name: nn.Parameter(weight.detach().clone())
                for name, weight in model.named_parameters()
                if weight.requires_grad
            }
            self._outer = torch.optim.SGD(self._last.values(), lr=_OUTER_LR, momentum=_OUTER_MOMENTUM, nesterov=True)

    def _finish(self, step: StepLoss) -> Tensor:
        loss = super()._finish(step)
        self.weight = step.weight
        return loss

    def update(self) -> None:
        """Step the optimizer; then average the weights if it is time."""
        trained = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
        if self._outer is not None:
            for name in trained.keys() - self._last.keys():  # frozen until now
                self._last[name] = nn.Parameter(trained[name].detach().clone())
                self._outer.param_groups[0]["params"].append(self._last[name])
        super().update()
        self._trained |= trained
        self._steps, self._seen = self._steps + 1, self._seen + self.weight
        if self._steps == self.period:
            self._average()

    def share_buffers(self) -> None:
        """Average the weights, too."""
        self._average()
        super().share_buffers()

    @torch.no_grad()
    def _average(self) -> None:
        """Average the weights since the last time, by what each rank has computed of. Collective."""
        if not self._steps:
            return
        weights, self._trained = self._trained, {}
        first = next(iter(weights.values()))
        seen = torch.tensor(self._seen, dtype=torch.float64, device=first.device)
        dist.all_reduce(seen, group=self._group)
        factor = self._seen * dist.get_world_size(self._group) / (seen.item() or 1.0)
        if seen and factor != 1.0:
            multiply([*weights.values()], factor)
        self._steps, self._seen = 0, 0.0
        average_parameters(iter(weights.values()), self._group)
        if self._outer is None:
            return
        for name, last in self._last.items():
            last.grad = last - weights[name] if name in weights else None
        self._outer.step()
        for name, weight in weights.items():
            weight.copy_(self._last[name])

    def state(self) -> StateDict:
        """Add the outer optimizer's momentum. The weights are those of the last average. Collective."""
        self._average_optimizer()
        state = super().state()
        if self._outer is not None:
            for name, last in self._last.items():
                momentum = self._outer.state[last].get("momentum_buffer")
                state.tensors[f"outer.{name}"] = torch.zeros_like(last) if momentum is None else momentum
        return state

    @torch.no_grad()
    def _average_optimizer(self) -> None:
        values = [one for state in self.optimizer.state.values() for one in state.values() if isinstance(one, Tensor)]
        moments = [one for one in values if one.dim() and (one.is_floating_point() or one.is_complex())]
        if moments:
            average_parameters(iter(moments), self._group)  # type: ignore[arg-type]  # torch names Parameter, and copies any tensors

    def load(self, state: StateDict) -> None:
        super().load(state)
        weights = dict(self.model.named_parameters())
        for name, last in self._last.items():
            last.data.copy_(weights[name])
            momentum = state.tensors.get(f"outer.{name}")
            if self._outer is not None and momentum is not None:
                self._outer.state[last]["momentum_buffer"] = momentum.to(last.device)


def local_sgd(task: Task, setting: Setting) -> Trainer:
    """Train on each rank by itself, and average the weights every ``--sync-every`` steps."""
    model = task.build(setting.device, setting.dtype)
    prepare(model, task.plan.units(model), setting.options)
    return LocalTrainer(task, model, task.make_optimizer(model.parameters()), setting)
