"""Strategies by name. A strategy is a function from (task, setting) to the trainer that the training loop calls.

Other packages add strategies by an entry point ``runner.strategies``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.parallel.registry import load_strategy
from runner.parallel.settings import ParallelSettings
from runner.versions.features import need

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from runner.parallel.task import Task
    from runner.parallel.trainer import Trainer

Strategy = Callable[["Task", "Setting"], "Trainer"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The ranks, device and options with which a strategy runs a task."""

    device: torch.device  # this rank's
    dtype: torch.dtype | None  # of the parameters; None: the model's own
    mesh: DeviceMesh  # dimensions: see mesh.device_mesh
    options: ParallelSettings
    example: Any = None  # a batch of the data, on which a pipeline measures its layers; None: it is read for that


def make_trainer(task: Task, setting: Setting) -> Trainer:
    """Wrap or shard the task's model by the options' strategy. All ranks begin with rank 0's. Collective.

    Raises:
        UsageError: the task's plan does not say what the options need, or the strategy does not support the model.
    """
    from runner.parallel.same_start import begin_alike

    need(*setting.options.features, device=setting.device.type)
    task.plan.check(setting.options)
    begin_alike(task.model, setting.device)
    strategy: Strategy = load_strategy(setting.options.strategy)
    return strategy(task, setting)
