"""The description of a training, the same for every workload and every strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where a model may be divided, by the names of its modules; ``*`` matches any text (``layers.*``).

    Attributes:
        shard: FSDP's units; the parameters of one module are gathered together.
        tensor: how layers are divided, in the form of ``parallelize_module``.
        pipeline: modules that may begin a stage.
    """

    shard: tuple[str, ...] = ()
    tensor: Mapping[str, ParallelStyle] = field(default_factory=dict)
    pipeline: tuple[str, ...] = ()

    def units(self, model: nn.Module) -> list[nn.Module]:
        """The model's modules that ``shard`` names, in the model's order."""
        return [module for name, module in model.named_modules() if any(fnmatchcase(name, unit) for unit in self.shard)]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained: model and loss, data, and optimizer."""

    model: nn.Module | Callable[[], nn.Module]  # or a factory, for a model too large to be made whole on every rank
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) → the mean over the batch, a scalar
    optimizer: OptimizerFactory
    train_data: Dataset[Any]  # of (input, target)
    test_data: Dataset[Any] | None = None
    is_classification: bool = True  # outputs are [batch, classes], targets class numbers; accuracy is computed
    unit: str = "samples"  # what printed lines call a sample
    plan: Plan = field(default_factory=Plan)  # data parallel needs none

    def build(self, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The model on a device. On ``meta`` a factory's model takes no memory: shard it, then ``fill`` it."""
        if isinstance(self.model, nn.Module):
            return self.model.to(device, dtype)
        with device:
            return self.model().to(device, dtype)


def fill(model: nn.Module, device: torch.device) -> None:
    """Allocate a model that is on ``meta`` on a device, and initialise its weights (``reset_parameters``).

    Raises:
        ValueError: a module with parameters or buffers of its own has no ``reset_parameters``.
    """
    model.to_empty(device=device)
    for name, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        reset = getattr(module, "reset_parameters", None)
        if own and reset is None:
            raise ValueError(f"{name or 'the model'} ({type(module).__name__}) has no reset_parameters()")
        if reset is not None:
            reset()


def to_device(
    inputs: Tensor, targets: Tensor, device: torch.device, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """A batch on a device. Inputs and floating-point targets get the dtype; class numbers keep theirs."""
    target_dtype = dtype if targets.is_floating_point() else None
    return inputs.to(device, dtype, non_blocking=True), targets.to(device, target_dtype, non_blocking=True)
