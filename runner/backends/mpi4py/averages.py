"""The mean of 64-bit integers over ranks, correct also where their sum does not fit into 64 bits.

Each rank divides its numbers by the number of ranks. The sums of the quotients and of the remainders fit into 64 bits, and
give the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ALL_BUT_THE_SIGN = (1 << 63) - 1


def split(numbers: Tensor, size: int) -> Tensor:
    """(quotient, remainder ≥ 0) of int64 or uint64 numbers divided by the number of ranks, in a last dimension of 2."""
    bits = numbers.view(torch.int64)  # torch cannot divide uint64
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
    """The means, rounded towards zero, from the sums of ``split``'s results over the ranks; without the last dimension."""
    quotients, remainders = sums.view(torch.int64).unbind(-1)
    means = quotients + remainders.div(size, rounding_mode="floor")
    if sums.dtype == torch.int64:
        means = means + ((means < 0) & (remainders % size > 0)).to(torch.int64)
    return means.view(sums.dtype)
