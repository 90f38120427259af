"""Stand-ins for functions that have a fused kernel on a GPU and none on a CPU. They save for the backward pass what the kernel saves.

The tracer follows a pass with fake tensors on a CPU, because torch's autograd needs a GPU to go backward through fake tensors on
one. Only shapes and dtypes count, so the stand-ins compute nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from runner.versions.features import FEATURES, need


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Use the stand-ins, in a forward pass, and in a backward pass, which computes checkpointed layers again."""
    replacements = [
        (functional, "rms_norm", _rms_norm),
        (torch, "rms_norm", _rms_norm),
        (functional, "dropout", _dropout),
    ]
    own = [getattr(module, name) for module, name, _ in replacements]
    for module, name, replacement in replacements:
        setattr(module, name, replacement)
    try:
        with _WithoutAttention() if FEATURES["plan of attention"].shortfall(torch.__version__) else nullcontext():
            yield
    finally:
        for (module, name, _), function in zip(replacements, own, strict=True):
            setattr(module, name, function)


class _WithoutAttention(TorchFunctionMode):
    """Refuses attention, by whatever name it is called, with a torch whose kernel for it on a CPU keeps more than a GPU's."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.scaled_dot_product_attention:
            need("plan of attention")
        return function(*args, **(kwargs or {}))


class _RMSNorm(torch.autograd.Function):
    """Keeps its input, its weight and a number per row, as ``aten::_fused_rms_norm`` does."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor | None, dimensions: int) -> Tensor:
        rows = values.shape[: values.ndim - dimensions]
        ctx.save_for_backward(values, weight, values.new_empty((*rows, 1), dtype=torch.float32))
        return torch.empty_like(values)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor | None, None]:
        values, weight, _rows = ctx.saved_tensors
        return torch.empty_like(values), None if weight is None else torch.empty_like(weight), None


def _rms_norm(values: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    local, local_weight = (one.to_local() if isinstance(one, DTensor) else one for one in (values, weight))
    result: Tensor = _RMSNorm.apply(local, local_weight, len(normalized_shape))
    if isinstance(values, DTensor):  # sharded along another dimension than those that are normalised
        return DTensor.from_local(result, values.device_mesh, values.placements, run_check=False)
    return result


_own_dropout = functional.dropout


def _dropout(values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Keep a dropout mask of one byte per element, as GPUs do; a CPU's has the elements' type."""
    if not training or p == 0 or inplace or isinstance(values, DTensor):
        return _own_dropout(values, p, training, inplace)
    return torch.native_dropout(values, p, training)[0]
