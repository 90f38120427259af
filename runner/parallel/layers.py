"""Changes to a model's units before they are sharded or wrapped: activation checkpointing, then compilation."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from runner.parallel.settings import ParallelSettings
from runner.parallel.streams import RandomStreams

# What takes longest to compute again, by the beginning of torch's name: the products of linear layers, and others.
_LINEAR = ("aten::mm", "aten::addmm")
_OTHERS = ("aten::bmm", "aten::convolution", "aten::_scaled_dot_product")


def prepare(
    model: nn.Module, units: Sequence[nn.Module], options: ParallelSettings, streams: RandomStreams | None = None
) -> None:
    """Make the units recompute their activations, and compile them, as the options say. Without units the model is one."""
    if options.activation_checkpointing != "none":
        for unit in units:
            _recompute(unit, streams, selective=options.activation_checkpointing == "selective")
    if options.compile:
        for unit in units or [model]:
            unit.compile()


def _recompute(module: nn.Module, streams: RandomStreams | None, *, selective: bool) -> None:
    """Drop a module's activations after its forward pass. Selective: keep the costly ones, see ``_keep_products``.

    The method is replaced and no wrapper put around the module, which would change the parameters' names.
    """
    options: dict[str, Any] = {}
    if selective:
        from torch.utils.checkpoint import create_selective_checkpoint_contexts  # torch 2.5

        contexts: Callable[..., Any] = create_selective_checkpoint_contexts
        options["context_fn"] = lambda: contexts(_keep_products())
    forward = module.forward
    if streams is None:
        module.forward = functools.partial(checkpoint, forward, use_reentrant=False, **options)
        return

    def again(*inputs: Any, **more: Any) -> Any:
        earlier, calls = streams.now(), itertools.count()

        def replayed(*inputs: Any, **more: Any) -> Any:
            with streams.replayed(earlier) if next(calls) else nullcontext():
                return forward(*inputs, **more)

        return checkpoint(replayed, *inputs, use_reentrant=False, **options, **more)

    module.forward = again


def _keep_products() -> Callable[..., Any]:
    """The policy of one call of a module: keep attention's results, convolutions', and those of every second linear layer.

    That is torchtitan's choice (its ``activation_checkpoint.py``). To keep those of all takes 18 GiB more for Llama 3.1 8B
    with 16,384 tokens in bf16 (by ``plan``).
    """
    from torch.utils.checkpoint import CheckpointPolicy

    seen: Counter[bool] = Counter()  # linear layers, in the forward pass and as they are computed again

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = operation.name()
        if name.startswith(_LINEAR):
            seen[context.is_recompute] += 1
            is_kept = seen[context.is_recompute] % 2 == 1
        else:
            is_kept = name.startswith(_OTHERS)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return policy
