"""Which samples each rank reads in which step. The order of all ranks together does not depend on how many there are."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy
from torch.utils.data import DistributedSampler, Sampler

from runner.training.data.permutation import Permutation
from runner.training.data.random_numbers import own_random_numbers

_BLOCK = 1 << 14  # samples whose places in the order are computed together
_DRAWN = 1 << 10  # samples or batches that a sampler of the user's draws together


class SharedSampler(Sampler[Any], ABC):
    """A rank's share of an epoch: every ``size``-th sample of an order that is the same on all ranks, from ``rank`` on.

    With ``size`` × batch size held fixed, step k uses the same samples on any number of ranks. An epoch may begin in its middle.
    All ranks get equally many samples: what is left after ``skip`` is divided evenly. Without ``drop_last`` the remainder is not
    dropped, and some ranks get one sample more.
    """

    def __init__(self, length: int, rank: int, size: int, seed: int, *, drop_last: bool = True) -> None:
        self.length, self.rank, self.size, self.seed, self.drop_last = length, rank, size, seed, drop_last
        self.epoch = 0
        self.skip = 0  # samples of this epoch that all ranks together have used

    @property
    def end(self) -> int:
        """How many samples all ranks together have used after this epoch."""
        left = self.length - self.skip
        return self.skip + (left // self.size * self.size if self.drop_last else left)

    def __len__(self) -> int:
        return len(range(self.skip + self.rank, self.end, self.size))

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """The numbers of this rank's samples."""


class ShardSampler(SharedSampler):
    """Of a shuffled epoch: the shuffle is computed block by block, and takes no memory."""

    def __iter__(self) -> Iterator[int]:
        order = Permutation(self.length, f"seed {self.seed} epoch {self.epoch}")
        for start in range(self.skip + self.rank, self.end, _BLOCK * self.size):
            stop = min(start + _BLOCK * self.size, self.end)
            yield from order.at(numpy.arange(start, stop, self.size)).tolist()


class DrawnSampler(SharedSampler):
    """Of the user's sampler, which draws the same on all ranks."""

    def __init__(self, sampler: Any, rank: int, size: int, seed: int, *, drop_last: bool) -> None:
        super().__init__(len(sampler), rank, size, seed, drop_last=drop_last)
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(
            drawn_alike(self._sampler, self.seed, self.epoch), self.skip + self.rank, self.end, self.size
        )


class OwnSampler(SharedSampler):
    """What the user's ``DistributedSampler`` gives this rank. It fills up or drops by itself, so that all ranks have equally many."""

    def __init__(self, sampler: DistributedSampler[Any], rank: int, size: int, seed: int, *, drop_last: bool) -> None:
        super().__init__(len(sampler) * size, rank, size, seed, drop_last=drop_last)
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        self._sampler.set_epoch(self.epoch)
        return itertools.islice(self._sampler, self.skip // self.size, None)


class Place(NamedTuple):
    """A batch of an epoch.

    Attributes:
        key: what its random numbers are seeded from.
        numbers: of its samples. A rank that has none in this step reads one that does not count.
        samples: how many of them count.
        all_samples: how many all ranks together have in this step.
        used: how much of the epoch is used after it, by all ranks together: samples, or batches of a batch sampler.
    """

    key: str
    numbers: Any
    samples: int
    all_samples: int
    used: int


class EpochOrder(ABC):
    """The batches of each epoch on this rank: as many on all ranks.

    Attributes:
        length: of an epoch, all ranks together: samples, or batches of a batch sampler.
        is_even: as in ``Feed``.
    """

    length: int
    is_even = True

    @abstractmethod
    def steps(self, used: int) -> int:
        """How many steps are left when so much of an epoch is used."""

    @abstractmethod
    def places(self, epoch: int, used: int) -> Iterator[Place]:
        """The batches that are left of an epoch."""


class SampleOrder(EpochOrder):
    """Batches of a sampler's samples."""

    def __init__(self, sampler: SharedSampler, batch_size: int) -> None:
        self.sampler, self.batch_size, self.length = sampler, batch_size, sampler.length

    def steps(self, used: int) -> int:
        left, step = self.length - used, self.batch_size * self.sampler.size
        return left // step if self.sampler.drop_last else math.ceil(left / step)

    def places(self, epoch: int, used: int) -> Iterator[Place]:
        sampler, step = self.sampler, self.batch_size * self.sampler.size
        sampler.epoch, sampler.skip = epoch, used
        own, numbers = iter(sampler), [0]
        for place in range(used, used + self.steps(used) * step, step):
            found = list(itertools.islice(own, self.batch_size))
            numbers = found or numbers[:1]
            after = min(place + step, self.length)
            key = f"{sampler.seed} sample {place} of epoch {epoch} rank {sampler.rank}"
            yield Place(key, numbers, len(found), after - place, after)


class BatchOrder(EpochOrder):
    """Every ``size``-th batch of the user's batch sampler, which draws the same on all ranks.

    Args:
        is_own: each rank's sampler gives its own batches already.
        is_single: the sampler gives single items that are batches.
    """

    is_even = False

    def __init__(
        self, batches: Any, rank: int, size: int, seed: int, *, drop_last: bool, is_own: bool, is_single: bool
    ) -> None:
        self._batches, self._rank, self._size, self._seed = batches, rank, size, seed
        self._drop_last, self._is_own, self._is_single = drop_last, is_own, is_single
        self.length = len(batches) * (size if is_own else 1)

    def steps(self, used: int) -> int:
        left = self.length - used
        return left // self._size if self._drop_last else math.ceil(left / self._size)

    def places(self, epoch: int, used: int) -> Iterator[Place]:
        size, rank = (1, 0) if self._is_own else (self._size, self._rank)
        drawn = itertools.islice(drawn_alike(self._batches, self._seed, epoch), used * size // self._size, None)
        for place in range(used, used + self.steps(used) * self._size, self._size):
            of_all = list(itertools.islice(drawn, size))
            if not of_all:  # it has fewer than its length says
                return
            counts = [1 if self._is_single else len(batch) for batch in of_all]
            key = f"{self._seed} batch {place} of epoch {epoch} rank {self._rank}"
            numbers, own = (of_all[rank], counts[rank]) if rank < len(of_all) else (of_all[0], 0)
            whole = sum(counts) * (self._size // size)
            yield Place(key, numbers, own, whole, min(place + self._size, self.length))


def drawn_alike(sampler: Iterable[Any], seed: int, epoch: int) -> Iterator[Any]:
    """What a sampler, or a batch sampler, gives in an epoch: on all ranks the same, whatever kind of random numbers it takes."""
    source = f"{seed} sampler of epoch {epoch}"
    for one in (sampler, getattr(sampler, "sampler", None)):
        tell_epoch(one, epoch)
        if (generator := getattr(one, "generator", None)) is not None:
            with own_random_numbers(source):
                generator.manual_seed(int(numpy.random.randint(1 << 62)))
    found: Iterator[Any] | None = None
    for block in itertools.count():
        with own_random_numbers(f"{source} block {block}"):
            found = iter(sampler) if found is None else found
            part = list(itertools.islice(found, _DRAWN))
        if not part:
            return
        yield from part


def tell_epoch(one: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a sampler or a data set that has it."""
    if callable(getattr(one, "set_epoch", None)):
        one.set_epoch(epoch)
