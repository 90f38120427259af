"""Computing in a smaller type than the parameters have: autocast, a gradient scaler, or fully_shard's own policy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from runner.base.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    """The context of a forward pass with the parameters in their own type."""
    dtype = _DTYPES[precision]
    return nullcontext() if dtype is None else torch.autocast(device, dtype)


def named(dtype: str | None) -> torch.dtype | None:
    """The dtype that ``--dtype`` names, if it is given."""
    return None if dtype is None else getattr(torch, dtype)


def of_inputs(model: nn.Module) -> torch.dtype | None:
    """The dtype to which floating-point inputs are cast: that of the model's first parameter which is no integer."""
    first = next((one.dtype for one in model.parameters() if one.is_floating_point() or one.is_complex()), None)
    return None if first is None else first.to_real()


def widened(precision: str) -> Callable[[Tensor], Tensor]:
    """Return what brings outputs to float32 that were computed in the smaller type; a model's own type stays."""
    dtype = _DTYPES[precision]
    return lambda tensor: tensor.float() if tensor.dtype == dtype else tensor


def policy(precision: str, *, is_root: bool, is_last: bool) -> MixedPrecisionPolicy:
    """Return fully_shard's policy: parameters are gathered in the smaller type, gradients are summed in single precision.

    Args:
        is_root: inputs are cast. Those of the units inside have the right type, or are better in a larger one.
        is_last: the outputs go to the loss, which is computed in single precision.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy  # imports DTensor, which takes a second

    dtype = _DTYPES[precision]
    if dtype is None:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=torch.float32,
        output_dtype=torch.float32 if is_last else None,
        cast_forward_inputs=is_root,
    )


def check(model: nn.Module, precision: str, *, will_be_wrapped: bool = False) -> None:
    """Refuse parameters that cannot be trained in this precision: torch has no way for complex ones (2.14), autocast leaves
    float64 as it is, and a gradient scaler takes no float16.

    Args:
        will_be_wrapped: whether fully_shard is still to wrap the model, which takes no parameters without dimensions.
    """
    odd = {"fp32": (), "bf16": (torch.float64,), "fp16": (torch.float64, torch.float16)}[precision]
    for name, parameter in model.named_parameters():
        if parameter.dtype in odd and parameter.requires_grad:
            raise UsageError(
                f"--precision {precision}: {name} is {str(parameter.dtype).removeprefix('torch.')}",
                fix="leave it out, or add --dtype float32",
            )
        is_wrapped = hasattr(parameter, "placements") or (will_be_wrapped and parameter.dim() > 0)
        is_summed_in_fp32 = is_wrapped and precision != "fp32"  # as fully_shard's gradients
        if parameter.is_complex() and parameter.requires_grad and (precision == "fp16" or is_summed_in_fp32):
            raise UsageError(
                f"--precision {precision}: {name} is complex, and its gradient would have to become real",
                fix="leave it out" if precision == "fp16" else "leave it out, or take --strategy ddp",
            )
