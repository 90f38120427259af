"""MPI's datatypes and operations for torch's, and conversions where MPI has no equivalent.

MPI has no floats of 16 or 8 bits, so these are reduced in float32 and rounded once, at the end. Means of integers are
rounded towards zero, and do not overflow even if the sum does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp

from runner.backends.mpi4py.averages import mean, split
from runner.versions.torch_api import known_dtypes
from runner.versions.torch_private import factor_of

if TYPE_CHECKING:
    from collections.abc import Callable

_DATATYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.uint8: MPI.UINT8_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
}
# Reduced in another type, and converted back.
_DETOURS = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e8m0fnu: torch.float32,
    torch.complex32: torch.complex64,
    **dict.fromkeys(known_dtypes("bcomplex32"), torch.complex64),
    torch.bool: torch.uint8,
}
_OPERATIONS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.AVG: MPI.SUM,  # then divided by the number of ranks
    ReduceOp.PREMUL_SUM: MPI.SUM,  # of tensors multiplied beforehand
    ReduceOp.PRODUCT: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
    ReduceOp.BAND: MPI.BAND,
    ReduceOp.BOR: MPI.BOR,
    ReduceOp.BXOR: MPI.BXOR,
}
# For booleans: a sum is "any", a product is "all".
_LOGICAL = {ReduceOp.SUM: MPI.LOR, ReduceOp.PRODUCT: MPI.LAND}
_ORDERED, _BITWISE = (ReduceOp.MIN, ReduceOp.MAX), (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class Reduction:
    """A reduction of tensors of a dtype: MPI's datatype and operation, and functions to apply before and after.

    Raises:
        TypeError: the operation is not defined for the dtype.
    """

    def __init__(self, operation: Any, dtype: torch.dtype, size: int) -> None:
        kind = getattr(operation, "op", operation)
        is_float = dtype.is_floating_point or dtype.is_complex
        wide = _DETOURS.get(dtype, dtype)
        undefined = (
            (kind in _BITWISE and is_float)
            or (kind in _ORDERED and dtype.is_complex)
            or (kind == ReduceOp.PREMUL_SUM and not is_float)
            or (kind == ReduceOp.AVG and dtype == torch.bool)
        )
        if undefined or wide not in _DATATYPES or kind not in _OPERATIONS:
            raise TypeError(f"{kind} of {dtype} is not defined")
        # Applied to a tensor before it is sent, and to the result (in place or not); None: nothing.
        self.before: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.after: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.width = 1  # numbers sent per element; if more than one, in an additional last dimension
        if kind == ReduceOp.PREMUL_SUM:
            factor = factor_of(operation)
            self.before = lambda tensor: tensor.to(wide) * factor
        elif kind == ReduceOp.AVG and is_float:
            self.after = lambda total: total.div_(size)
        elif kind == ReduceOp.AVG and dtype.itemsize < torch.int64.itemsize:
            wide = torch.int64
            self.after = lambda total: total.div_(size, rounding_mode="trunc")
        elif kind == ReduceOp.AVG:
            self.width = 2
            self.before, self.after = lambda tensor: split(tensor, size), lambda sums: mean(sums, size)
        self.dtype, self.datatype = wide, _DATATYPES[wide]
        self.is_direct = wide == dtype and not (self.before or self.after)  # MPI can reduce the tensor's own memory
        self.operation = _LOGICAL.get(kind, _OPERATIONS[kind]) if dtype == torch.bool else _OPERATIONS[kind]


def reduction_of(operation: Any, dtype: torch.dtype, size: int) -> Reduction:
    """The reduction; equal ones are made once.

    Raises:
        TypeError: the operation is not defined for the dtype.
    """
    number = getattr(operation, "op", operation).value  # comparing torch's enumeration itself is slow
    if number == _PREMUL_SUM:
        return Reduction(operation, dtype, size)
    return _alike(number, dtype, size)


_PREMUL_SUM = ReduceOp.PREMUL_SUM.value


@functools.cache
def _alike(number: int, dtype: torch.dtype, size: int) -> Reduction:
    return Reduction(ReduceOp.RedOpType(number), dtype, size)
