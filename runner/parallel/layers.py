"""What is done to a model's units before they are sharded or wrapped: activation checkpointing, then compilation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from runner.parallel.options import ParallelOptions

# What takes longest to compute again, by the beginning of torch's name.
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::convolution", "aten::_scaled_dot_product")


def prepare(model: nn.Module, units: Sequence[nn.Module], options: ParallelOptions) -> None:
    """Make the units recompute their activations, and compile them, as the options say. Without units the model is one."""
    if options.activation_checkpointing != "none":
        for unit in units:
            _recompute(unit, selective=options.activation_checkpointing == "selective")
    if options.compile:
        for unit in units or [model]:
            unit.compile()


def _recompute(module: nn.Module, *, selective: bool) -> None:
    """Drop a module's activations after its forward pass. Selective: keep the results of matrix products and attention.

    The method is replaced and no wrapper put around the module, which would change the parameters' names.
    """
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    options: dict[str, Any] = {"context_fn": contexts} if selective else {}
    again = functools.partial(checkpoint, module.forward, use_reentrant=False, **options)
    module.forward = again


def _keep_products(_: Any, operation: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    is_product = operation.name().startswith(_PRODUCTS)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE
