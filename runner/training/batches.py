"""Each rank's share of the data. The global batch of a step does not depend on the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler, Subset, TensorDataset

from runner.errors import UsageError, raised_on_all_ranks


class ShardSampler(Sampler[int]):
    """Every ``size``-th sample of a shuffled epoch, starting at ``rank``; may begin in mid-epoch.

    With ``size`` × batch size held fixed, step k uses the same samples on any number of ranks. All ranks get equally
    many samples: the rest of the epoch after ``skip`` is divided evenly.
    """

    @classmethod
    def over(cls, data: Dataset[Any], rank: int, size: int, seed: int) -> ShardSampler:
        """A sampler of all of the data.

        Raises:
            UsageError: the data has no length.
        """
        return cls(length_of(data), rank, size, seed)

    def __init__(self, length: int, rank: int, size: int, seed: int) -> None:
        self.length, self.rank, self.size, self.seed = length, rank, size, seed
        self.epoch = 0
        self.skip = 0  # samples of this epoch that all ranks together have used

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator)
        end = self.skip + len(self) * self.size  # the same number for each rank; a remainder is not used
        return iter(order[self.skip : end][self.rank :: self.size].tolist())

    def __len__(self) -> int:
        return (self.length - self.skip) // self.size


@raised_on_all_ranks()
def length_of(data: Dataset[Any]) -> int:
    """How many samples there are.

    Raises:
        UsageError: the data has no length, because it is a stream.
    """
    if not isinstance(data, Sized):
        raise UsageError(
            f"{type(data).__name__} has no length, which sharing it among ranks needs", fix="give it __len__"
        )
    return len(data)


@raised_on_all_ranks()
def train_loader(data: Dataset[Any], sampler: ShardSampler, batch_size: int, workers: int) -> DataLoader[Any]:
    """Full batches only. An incomplete last one is dropped, because its samples would weigh more.

    Raises:
        UsageError: the data is too small for one full batch.
    """
    share = sampler.length // sampler.size
    if share < batch_size:
        raise UsageError(
            f"{sampler.length} samples on {sampler.size} data-parallel ranks are {share} each, less than one batch of {batch_size}",
            fix=f"take --batch-size {max(share, 1)} or less",
        )
    return _loader(data, sampler, batch_size, workers, drop_last=True)


def evaluation_loader(data: Dataset[Any], rank: int, size: int, batch_size: int) -> DataLoader[Any]:
    """This rank's share for evaluation: every sample is on exactly one rank, without padding."""
    length = length_of(data)
    return _loader(data, range(rank, length, size), batch_size, 0, drop_last=False)


def evaluation_batches(length: int, size: int, batch_size: int) -> tuple[int, int]:
    """How many batches the ranks with the smallest and the largest share have."""
    return math.ceil(length // size / batch_size), math.ceil(math.ceil(length / size) / batch_size)


def _loader(
    data: Dataset[Any], order: Sampler[int] | range, batch_size: int, workers: int, *, drop_last: bool
) -> DataLoader[Any]:
    if isinstance(data, TensorDataset):  # index a whole batch at once, not sample by sample
        batches = BatchSampler(order, batch_size, drop_last)
        return DataLoader(data, sampler=batches, batch_size=None, num_workers=workers)
    if isinstance(order, range):
        return DataLoader(Subset(data, order), batch_size=batch_size)
    return DataLoader(data, sampler=order, batch_size=batch_size, num_workers=workers, drop_last=drop_last)
