"""MPI's datatypes and operations for torch's, and what has no equal there and takes a detour.

MPI has no bfloat16 and no float16, so those are reduced in float32 and rounded once, at the end.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp

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
# Reduced in another type, and rounded back.
_DETOURS = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.complex32: torch.complex64,
    torch.bool: torch.uint8,
}
_OPERATIONS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.AVG: MPI.SUM,  # and divided by the number of ranks
    ReduceOp.PREMUL_SUM: MPI.SUM,  # of what has been multiplied before
    ReduceOp.PRODUCT: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
    ReduceOp.BAND: MPI.BAND,
    ReduceOp.BOR: MPI.BOR,
    ReduceOp.BXOR: MPI.BXOR,
}
# Of truth values: a sum is "any", as large as it may be.
_LOGICAL = {ReduceOp.SUM: MPI.LOR, ReduceOp.PRODUCT: MPI.LAND, ReduceOp.AVG: None, ReduceOp.PREMUL_SUM: None}
_ORDERED, _BITWISE = (ReduceOp.MIN, ReduceOp.MAX), (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


class Reduction:
    """One reduction of tensors of a dtype: the datatype and operation for MPI, and what is done before and after.

    Raises:
        TypeError: the operation is not defined for the dtype.
    """

    def __init__(self, operation: Any, dtype: torch.dtype, size: int) -> None:
        kind = getattr(operation, "op", operation)
        self._kind, self._size = kind, size
        # What is done to a tensor before it is sent, if anything is.
        self.before: Callable[[torch.Tensor], torch.Tensor] | None = None
        if kind == ReduceOp.PREMUL_SUM:
            factor: Any = operation.factor
            self.before = lambda tensor: tensor * factor
        self.dtype = _DETOURS.get(dtype, dtype)
        mpi_operation = _LOGICAL.get(kind, _OPERATIONS.get(kind)) if dtype == torch.bool else _OPERATIONS.get(kind)
        is_float = dtype.is_floating_point or dtype.is_complex
        wrong = (kind in _BITWISE and is_float) or (kind in _ORDERED and dtype.is_complex)
        if mpi_operation is None or self.dtype not in _DATATYPES or wrong:
            raise TypeError(f"{kind} of {dtype} is not defined")
        self.datatype, self.operation = _DATATYPES[self.dtype], mpi_operation

    def finish(self, tensor: torch.Tensor) -> None:
        """What MPI leaves to be done with the result, in place."""
        if self._kind == ReduceOp.AVG:
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                tensor.div_(self._size)
            else:
                tensor.div_(self._size, rounding_mode="trunc")


def reduction_of(operation: Any, dtype: torch.dtype, size: int) -> Reduction:
    """The reduction; made once for all that are alike.

    Raises:
        TypeError: the operation is not defined for the dtype.
    """
    kind = getattr(operation, "op", operation)
    if kind == ReduceOp.PREMUL_SUM:
        return Reduction(operation, dtype, size)
    return _alike(kind, dtype, size)


_alike = functools.cache(Reduction)
