"""What is trained, and one step of it: the same for every workload and every strategy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from runner.parallel import OptimizerFactory


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained: model and loss, data, and optimizer."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) → the mean over the batch, a scalar
    optimizer: OptimizerFactory
    train_data: Dataset[Any]  # of (input, target)
    test_data: Dataset[Any] | None = None
    is_classification: bool = True  # outputs are [batch, classes], targets class numbers: accuracy has a meaning
    unit: str = "samples"  # what a sample is called on the screen


def to_device(
    inputs: Tensor, targets: Tensor, device: torch.device, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """A batch where it is computed on. Class numbers keep their type; inputs, and what is regressed, get the model's."""
    wanted = dtype if targets.is_floating_point() else None
    return inputs.to(device, dtype, non_blocking=True), targets.to(device, wanted, non_blocking=True)


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    task: Task,
    inputs: Tensor,
    targets: Tensor,
    parts: int = 1,
    check: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """One step of the optimizer, its batch computed in so many equal parts. Returns the rank's loss, detached.

    Args:
        check: is given the loss before the optimizer steps, and may raise.
    """
    optimizer.zero_grad()
    losses = []
    # DDP exchanges gradients in every backward pass unless it is told not to; Horovod's optimizer counts the passes.
    wait = getattr(model, "no_sync", nullcontext)
    for number, (part, wanted) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True), 1):
        with nullcontext() if number == parts else wait():
            loss = task.loss(model(part), wanted) / parts
            torch.autograd.backward(loss)
        losses.append(loss.detach())
    whole = torch.stack(losses).sum()
    if check is not None:
        check(whole)
    optimizer.step()
    return whole
