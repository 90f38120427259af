"""Each rank's share of the data. The global batch of a step does not depend on the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Any

import numpy
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, default_collate

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.training.data.permutation import Permutation
from runner.training.data.random_numbers import own_random_numbers

_BLOCK = 1 << 14  # samples whose places in the order are computed together


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
        order = Permutation(self.length, f"seed {self.seed} epoch {self.epoch}")
        end = self.skip + len(self) * self.size  # the same number for each rank; a remainder is not used
        for start in range(self.skip + self.rank, end, _BLOCK * self.size):
            yield from order.at(numpy.arange(start, min(start + _BLOCK * self.size, end), self.size)).tolist()

    def __len__(self) -> int:
        return (self.length - self.skip) // self.size


@raised_on_all_ranks()
def length_of(data: Dataset[Any]) -> int:
    """How many samples there are.

    Raises:
        UsageError: the data has no length, because it is a stream.
    """
    name = type(data).__name__
    if not isinstance(data, Sized):
        raise UsageError(f"{name} has no length, which sharing it among ranks needs", fix="give it __len__")
    if isinstance(data, DataLoader):
        raise UsageError("the task's data is a DataLoader", fix="give the Dataset itself: the batches are made here")
    if isinstance(data, IterableDataset):
        raise UsageError(
            f"{name} is an IterableDataset, whose samples have no numbers by which ranks could share them",
            fix="make it a Dataset with __len__ and __getitem__",
        )
    return len(data)


@raised_on_all_ranks()
def check_length(length: int, size: int, batch_size: int) -> None:
    """Check that there is a full batch for each data-parallel rank.

    Raises:
        UsageError: there is not.
    """
    share = length // size
    if share < batch_size:
        raise UsageError(
            f"{length} samples on {size} data-parallel ranks are {share} each, less than one batch of {batch_size}",
            fix=f"take --batch-size {max(share, 1)} or less",
        )


def train_loader(data: Dataset[Any], sampler: ShardSampler, batch_size: int, workers: int) -> DataLoader[Any]:
    """Full batches only. An incomplete last one is dropped, because its samples would weigh more.

    Raises:
        UsageError: the data is too small for one full batch.
    """
    check_length(sampler.length, sampler.size, batch_size)
    order = _Numbered(sampler, batch_size, drop_last=True)
    return DataLoader(_Batches(data), sampler=order, batch_size=None, num_workers=workers)


def evaluation_loader(data: Dataset[Any], rank: int, size: int, batch_size: int, workers: int = 0) -> DataLoader[Any]:
    """This rank's share for evaluation: every sample is on exactly one rank, without padding."""
    order = _Numbered(range(rank, length_of(data), size), batch_size, drop_last=False)
    return DataLoader(_Batches(data), sampler=order, batch_size=None, num_workers=workers)


def samples_of(data: Any, numbers: list[int]) -> list[Any]:
    """These samples, by the data's own code, called as torch's loader calls it: with one number at a time, or with all."""
    if callable(getattr(data, "__getitems__", None)):
        samples: list[Any] = data.__getitems__(numbers)
        return samples
    return [data[number] for number in numbers]


def evaluation_batches(length: int, size: int, batch_size: int) -> tuple[int, int]:
    """How many batches the ranks with the smallest and the largest share have."""
    return math.ceil(length // size / batch_size), math.ceil(math.ceil(length / size) / batch_size)


_Key = tuple[str, list[int]]  # what a batch's random numbers are seeded from, and its samples


class _Numbered(Sampler[_Key]):
    """The keys of batches. A batch's random numbers depend on the seed, its place in the epoch, and the rank."""

    def __init__(self, order: ShardSampler | range, batch_size: int, *, drop_last: bool) -> None:
        self._order, self._batches = order, BatchSampler(order, batch_size, drop_last)

    def __iter__(self) -> Iterator[_Key]:
        order, each = self._order, self._batches.batch_size
        for number, samples in enumerate(self._batches):
            if isinstance(order, range):
                yield f"sample {order.start + number * each * order.step} of an evaluation", samples
            else:
                place = order.skip + number * each * order.size
                yield f"{order.seed} sample {place} of epoch {order.epoch} rank {order.rank}", samples

    def __len__(self) -> int:
        return len(self._batches)


class _Batches(Dataset[Any]):
    """The batches of data, by their keys. One is the same whichever process reads it, and whatever was read before."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data
        is_its_own = isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__
        self._is_plain = is_its_own and not hasattr(data, "__getitems__")

    def __getitem__(self, key: _Key) -> Any:
        source, samples = key
        if self._is_plain:  # tensors, which can be indexed by a whole batch
            return self._data[samples]
        with own_random_numbers(source):
            return default_collate(samples_of(self._data, samples))
