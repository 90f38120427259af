"""Strategies, by the name a user types: from (model, optimizer factory, mesh, gradients) to (model, optimizer).

Others come from packages with an entry point ``runner.strategies``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]
    Strategy = Callable[[nn.Module, OptimizerFactory, DeviceMesh, "GradientOptions"], tuple[nn.Module, Optimizer]]

STRATEGIES = {
    "ddp": "runner.parallel.ddp:ddp",
    "horovod": "runner.parallel.horovod:horovod",
}


COMPRESSIONS = ("none", "fp16")


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """How the gradients of a step come together."""

    compression: str = "none"  # on the wire: one of COMPRESSIONS
    micro_batches: int = 1  # backward passes per step; the gradients are exchanged in the last


def strategy_names() -> list[str]:
    """The names of all strategies, those of other packages included."""
    return [*STRATEGIES, *(point.name for point in entry_points(group="runner.strategies"))]


def load_strategy(name: str) -> Strategy:
    """The function behind a strategy's name."""
    if name in STRATEGIES:
        module, _, function = STRATEGIES[name].partition(":")
        strategy: Strategy = getattr(importlib.import_module(module), function)
        return strategy
    loaded: Strategy = next(point for point in entry_points(group="runner.strategies") if point.name == name).load()
    return loaded
