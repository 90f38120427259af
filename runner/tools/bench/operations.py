"""The operations that are timed, and their expected results.

As in nccl-tests, a size is that of the larger of a rank's two buffers: the output of an allgather, the input of a
reduce_scatter. Bus bandwidth is algorithm bandwidth (size over time) times the share of the data that crosses the busiest
link (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.backends.connection import Buffers


def buffers(count: int, rank: int, ranks: int, device: torch.device) -> Buffers:
    """Float32 buffers of ``count`` elements, rounded down to a multiple of the number of ranks."""
    share = max(1, count // ranks)
    whole, other = (torch.empty(share * ranks, device=device) for _ in range(2))
    return Buffers(whole, other, torch.empty(share, device=device), rank, ranks)


def fill(data: Buffers) -> None:
    """Set all elements to the rank plus one."""
    for tensor in (data.whole, data.other, data.part):
        tensor.fill_(data.rank + 1)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An operation, independent of the backend.

    Attributes:
        bus: factor from algorithm to bus bandwidth, for n ranks.
        result: the buffer that holds the result.
        expected: the right result, if the buffers were filled by ``fill``.
    """

    bus: Callable[[int], float]
    result: Callable[[Buffers], Tensor]
    expected: Callable[[Buffers], Tensor | float]


def _sum(b: Buffers) -> float:
    return b.ranks * (b.ranks + 1) / 2


def _all_numbers(b: Buffers) -> Tensor:
    """Each rank plus one, repeated over its share."""
    return torch.arange(1.0, b.ranks + 1, device=b.whole.device).repeat_interleave(b.part.numel())


def _share(n: int) -> float:
    return (n - 1) / n


OPERATIONS = {
    "allreduce": Measured(bus=lambda n: 2 * _share(n), result=lambda b: b.whole, expected=_sum),
    "allgather": Measured(bus=_share, result=lambda b: b.whole, expected=_all_numbers),
    "reduce_scatter": Measured(bus=_share, result=lambda b: b.part, expected=_sum),
    "alltoall": Measured(bus=_share, result=lambda b: b.other, expected=_all_numbers),
    "broadcast": Measured(bus=lambda n: 1.0, result=lambda b: b.whole, expected=lambda b: 1.0),
    "sendrecv": Measured(
        bus=lambda n: 1.0, result=lambda b: b.other, expected=lambda b: float((b.rank - 1) % b.ranks + 1)
    ),
}
