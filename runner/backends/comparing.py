"""Compare what the ranks have by one reduction: no rank gets the values of all others, of which there may be 10,000."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist

_ONLY_ON = {"nccl": "cuda", "xccl": "xpu"}  # what backends that do not take tensors in host memory take
_LEAST = torch.iinfo(torch.int64).min


def bounds(numbers: Sequence[int | None], group: dist.ProcessGroup | None = None) -> list[tuple[int, int]]:
    """The smallest and the largest of the ranks' numbers, for each place. Collective.

    Args:
        numbers: of 64 bits, as many on all ranks. None where this rank has none; if no rank has any, the smallest is larger than
            the largest.
    """
    if not numbers:
        return []
    # The complement, unlike the negative, of every number is a number of 64 bits.
    pairs = [(_LEAST, _LEAST) if one is None else (one, ~one) for one in numbers]
    both = torch.tensor(pairs, dtype=torch.int64, device=_ONLY_ON.get(dist.get_backend(group), "cpu"))
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    return [(~inverted, largest) for largest, inverted in both.tolist()]


def number_of(text: str) -> int:
    """A number of 64 bits that other texts do not have."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
