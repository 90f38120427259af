"""The mean of 64-bit integers over ranks, right where their sum does not fit into 64 bits.

Each rank splits its numbers into what the number of ranks goes into and what is left over. The sums of both fit, and
together they are the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ALL_BUT_THE_SIGN = (1 << 63) - 1


def split(numbers: Tensor, size: int) -> Tensor:
    """(quotient, remainder ≥ 0) of int64 or uint64 numbers by the number of ranks, in a last dimension of 2."""
    bits = numbers.view(torch.int64)  # torch divides no uint64
    if numbers.dtype == torch.int64:
        quotients = bits.div(size, rounding_mode="floor")
        remainders = bits - quotients * size
    else:
        quotients = ((bits >> 1) & _ALL_BUT_THE_SIGN).div(size, rounding_mode="floor") * 2
        remainders = bits - quotients * size  # less than 2 × size
        once_more = (remainders >= size).to(torch.int64)
        quotients, remainders = quotients + once_more, remainders - once_more * size
    return torch.stack([quotients, remainders], -1).view(numbers.dtype)


def mean(sums: Tensor, size: int) -> Tensor:
    """The means, rounded towards zero, of what ``split`` gave, summed over the ranks; without the last dimension."""
    quotients, remainders = sums.view(torch.int64).unbind(-1)
    means = quotients + remainders.div(size, rounding_mode="floor")
    if sums.dtype == torch.int64:
        means = means + ((means < 0) & (remainders % size > 0)).to(torch.int64)
    return means.view(sums.dtype)
