"""The state of a training that hooks receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.metrics.sinks import StepRecord


@dataclass
class State:
    """The state of a training that hooks receive."""

    model: nn.Module  # this rank's, not the strategy's wrapper
    optimizer: Optimizer
    position: Position
    records: list[StepRecord] = field(default_factory=list)  # those written last
    # Ends the training after this step, with a checkpoint; one rank's call is enough.
    stop: Callable[[], None] = lambda: None


Hook = Callable[[State], None]
