"""Each rank's share of the data that a model is evaluated on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, default_collate

from runner.training.data.loading import Batches, Collate, Reading
from runner.training.data.source import length_of


def evaluation_loader(
    data: Dataset[Any], rank: int, size: int, batch_size: int, workers: int = 0, collate: Collate = default_collate
) -> DataLoader[Any]:
    """This rank's share for evaluation: every sample is on exactly one rank, without padding."""
    order = _Numbered(range(rank, length_of(data), size), batch_size)
    return Reading(num_workers=workers).loader(Batches(data, collate), order)


def evaluation_batches(length: int, size: int, batch_size: int) -> tuple[int, int]:
    """How many batches the ranks with the smallest and the largest share have."""
    return math.ceil(length // size / batch_size), math.ceil(math.ceil(length / size) / batch_size)


class _Numbered(Sampler["tuple[str, list[int]]"]):
    """The keys of batches. A batch's random numbers depend on its place."""

    def __init__(self, order: range, batch_size: int) -> None:
        self._order, self._batches = order, BatchSampler(order, batch_size, drop_last=False)

    def __iter__(self) -> Iterator[tuple[str, list[int]]]:
        order, each = self._order, self._batches.batch_size
        for number, samples in enumerate(self._batches):
            yield f"sample {order.start + number * each * order.step} of an evaluation", samples

    def __len__(self) -> int:
        return len(self._batches)
