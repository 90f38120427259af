"""The samples that each rank reads in each step. The order of all ranks together does not depend on the number of ranks."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from runner.training.data.feed import Batch
from runner.training.data.random_numbers import own_random_numbers

_BLOCK = 1 << 14  # samples whose places in the order are computed together
_DRAWN = 1 << 10  # keys that a user's sampler draws together
# Up to this many numbers are shuffled as a list, which takes a millisecond, and makes any order as likely as any other.
_LISTED = 1 << 16
_ROUNDS = 6  # four are enough if the functions are random themselves (M. Luby and C. Rackoff, 1988)
_Numbers = NDArray[numpy.uint64]

CheckKeys = Callable[[str], None]  # raises an error if these keys differ on other ranks; may be collective


class Place(NamedTuple):
    """A rank's part of a step.

    Attributes:
        source: the text from which the random numbers of its samples are seeded.
        batch: the batch, with the keys of its samples as its value.
    """

    source: str
    batch: Batch


class Permutation:
    """An order of the numbers below ``length`` that depends on a key, of which any part can be read by itself.

    A list of 10⁸ numbers would take gigabytes on each rank. A Feistel network permutes the numbers of a given count of bits. It is
    applied again to the results that are not below ``length`` ("cycle walking": J. Black and P. Rogaway, Ciphers with arbitrary finite
    domains, 2002), which takes two turns at most on average.
    """

    def __init__(self, length: int, key: str) -> None:
        self.length = length
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = numpy.frombuffer(digest, dtype=numpy.uint64)
        self._list: NDArray[Any] | None = None
        if length <= _LISTED:
            marks = _mixed(_mixed(numpy.arange(length, dtype=numpy.uint64) ^ self._keys[0]) ^ self._keys[1])
            self._list = numpy.argsort(marks, kind="stable")
        bits = max(length - 1, 1).bit_length()
        self._low = numpy.uint64(bits // 2)
        self._masks = numpy.uint64((1 << (bits - bits // 2)) - 1), numpy.uint64((1 << bits // 2) - 1)

    def at(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers at these places of the order."""
        if self._list is not None:
            listed: NDArray[Any] = self._list[places]
            return listed
        found = self._once(places.astype(numpy.uint64))
        while len(beyond := numpy.flatnonzero(found >= self.length)):
            found[beyond] = self._once(found[beyond])
        return found

    def _once(self, numbers: _Numbers) -> _Numbers:
        halves = [numbers >> self._low, numbers & self._masks[1]]
        for turn, key in enumerate(self._keys):
            changed = turn % 2
            halves[changed] ^= _mixed(halves[1 - changed] ^ key) & self._masks[changed]
        return (halves[0] << self._low) | halves[1]


def _mixed(numbers: _Numbers) -> _Numbers:
    """Return numbers whose bits each depend on all bits of the given ones: the finalizer of MurmurHash3 (A. Appleby, 2008)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        numbers ^= numbers >> numpy.uint64(33)
        numbers *= numpy.uint64(factor)
    numbers ^= numbers >> numpy.uint64(33)
    return numbers


class ShuffledOrder:
    """A shuffle of all samples that is computed block by block, takes no memory, and can be read from any place on."""

    is_even = True  # as in ``Feed``
    drawn: str | None = None  # a digest of the first keys that a sampler has drawn for the epoch, the same on all ranks

    def __init__(self, length: int, rank: int, size: int, batch_size: int, seed: int, *, drop_last: bool) -> None:
        self._length, self._rank, self._size, self._seed = length, rank, size, seed
        self._step, self._drop_last = batch_size * size, drop_last

    def steps(self, used: int) -> int:
        """Return how many steps are left when this much of an epoch is used."""
        left = self._length - used
        return left // self._step if self._drop_last else -(-left // self._step)

    def first(self, count: int) -> list[int]:
        """Return up to ``count`` keys of samples that make a batch, the same keys on all ranks."""
        return list(range(min(count, self._length)))

    def places(self, epoch: int, used: int) -> Iterator[Place]:
        """Return the steps that are left of an epoch, as many on all ranks. The call may be collective, and the iteration is not."""
        end = min(self._length, used + self.steps(used) * self._step)
        own, numbers = self._numbers(epoch, used, end), [0]
        for place in range(used, end, self._step):
            after = min(place + self._step, end)
            found = list(itertools.islice(own, len(range(place + self._rank, after, self._size))))
            numbers = found or numbers[:1]
            source = f"{self._seed} sample {place} of epoch {epoch} rank {self._rank}"
            yield Place(source, Batch(numbers, len(found), after - place, after, is_last=after == end))

    def _numbers(self, epoch: int, used: int, end: int) -> Iterator[int]:
        order, block = Permutation(self._length, f"seed {self._seed} epoch {epoch}"), _BLOCK * self._size
        for start in range(used + self._rank, end, block):
            yield from order.at(numpy.arange(start, min(start + block, end), self._size)).tolist()


class DrawnOrder:
    """The keys that a sampler of the user's draws, or the lists of keys of a batch sampler.

    Args:
        sampler: gives the same on all ranks, and each rank takes every ``size``-th; with ``is_own`` it gives this rank's own.
        each: keys per rank and step; 0 for a batch sampler.
        whole: the last step is cut to a multiple of this many keys.
        counted: how many of this rank's own keys count, because a DistributedSampler has added the others; None for all.
        check: called with the keys that have to be the same on all ranks.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        rank: int,
        size: int,
        each: int,
        seed: int,
        *,
        whole: int,
        is_own: bool = False,
        counted: int | None = None,
        check: CheckKeys = lambda keys: None,
    ) -> None:
        self._sampler, self._each, self._seed, self._own_rank = sampler, each, seed, rank
        self._rank, self._ranks, self._times = (0, 1, size) if is_own else (rank, size, 1)
        self._whole, self._counted, self._check = whole, counted, check
        self._is_own, self.is_even, self.drawn = is_own, bool(each), ShuffledOrder.drawn
        self._step = max(each, 1) * self._ranks

    def steps(self, used: int) -> int | None:
        """Return how many steps are left; None if the sampler has no length."""
        if not isinstance(self._sampler, Sized):
            return None
        left = len(self._sampler) - used // self._times
        return -(-(left // self._whole * self._whole) // self._step)

    def first(self, count: int) -> list[Any]:
        """Return up to ``count`` keys, as ``ShuffledOrder`` does."""
        if self._is_own:
            return list(range(count))  # a DistributedSampler gives numbers
        found = list(itertools.islice(drawn_alike(self._sampler, self._seed, 0), count))
        return found if self._each or not found else list(found[0])[:count]

    def places(self, epoch: int, used: int) -> Iterator[Place]:
        """Return the steps that are left of an epoch, as ``ShuffledOrder`` does."""
        drawn = drawn_alike(self._sampler, self._seed, epoch)
        if isinstance(self._sampler, Sized):
            drawn = itertools.islice(drawn, len(self._sampler))
        if not self._is_own:
            first = list(itertools.islice(drawn, _DRAWN))
            text, drawn = repr(first), itertools.chain(first, drawn)
            self._check(text)
            self.drawn = None if " at 0x" in text else hashlib.blake2b(text.encode()).hexdigest()[:16]
        return self._places(epoch, used, itertools.islice(drawn, used // self._times, None))

    def _places(self, epoch: int, used: int, drawn: Iterator[Any]) -> Iterator[Place]:
        what = "sample" if self._each else "batch"
        following = self._read(drawn)
        while keys := following:
            following = self._read(drawn)
            own = keys[self._rank :: self._ranks]
            if self._counted is not None:
                own = own[: max(0, self._counted - used // self._times)]
            counts = [1 if self._each else len(one) for one in keys]
            samples = len(own) if self._each else sum(counts[self._rank :: self._ranks])
            source = f"{self._seed} {what} {used} of epoch {epoch} rank {self._own_rank}"
            used += len(keys) * self._times
            read = own or keys[:1]
            value = read if self._each else read[0]
            yield Place(source, Batch(value, samples, sum(counts) * self._times, used, is_last=not following))

    def _read(self, drawn: Iterator[Any]) -> list[Any]:
        keys = list(itertools.islice(drawn, self._step))
        return keys[: len(keys) // self._whole * self._whole]


EpochOrder = ShuffledOrder | DrawnOrder


def drawn_alike(sampler: Iterable[Any], seed: int, epoch: int) -> Iterator[Any]:
    """Yield what a sampler, or a batch sampler, gives in an epoch: the same on all ranks, whose random numbers are seeded alike.

    The random numbers are those of torch, NumPy and Python, and of the sampler's ``generator`` if it has one.
    """
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
    """Call ``set_epoch`` of a sampler, a data set or a loader that has it."""
    if callable(getattr(one, "set_epoch", None)):
        one.set_epoch(epoch)
