"""How batches are made of samples, in this process or in others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset, default_collate

from runner.training.data.feed import Batch, Feed
from runner.training.data.orders import EpochOrder, Place
from runner.training.data.random_numbers import own_random_numbers

Collate = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """By which processes data is read: what torch's ``DataLoader`` takes by the same names."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None

    def loader(self, data: Dataset[Any], keys: Sampler[Any] | None = None) -> DataLoader[Any]:
        """A loader of data whose items are batches.

        Args:
            keys: of the batches, in their order; None for a stream.
        """
        settings = {name: value for name, value in vars(self).items() if value is not None}
        return DataLoader(data, batch_size=None, sampler=keys, collate_fn=_as_it_is, **settings)


class IndexedFeed(Feed):
    """Batches of data whose samples have numbers. An epoch is taken up in its middle without reading what is before.

    Attributes:
        loader: of the values alone, of the epoch that was begun last; at first of the whole first one.
    """

    def __init__(
        self, data: Dataset[Any], order: EpochOrder, reading: Reading, collate: Collate, *, is_single: bool = False
    ):
        self.length, self.is_even, self._order, self._keys = order.length, order.is_even, order, _Keys(order)
        self.is_single = is_single
        self.loader = reading.loader(Batches(data, collate, is_single=is_single), self._keys)

    def steps(self, used: int) -> int:
        return self._order.steps(used)

    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        self._keys.begin(epoch, used)
        return self._placed(iter(self.loader), self._keys.ahead, self.steps(used))

    def _placed(self, values: Iterator[Any], ahead: deque[Place], left: int) -> Iterator[Batch]:
        for value in values:
            _, _, samples, all_samples, after = ahead.popleft()
            left -= 1
            yield Batch(value, samples, all_samples, after, is_last=not left)


class _Keys(Sampler["tuple[str, Any]"]):
    """The keys of an epoch's batches, for the loader. What else is known of a batch waits here until the loader gives it."""

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self.begin(0, 0)

    def begin(self, epoch: int, used: int) -> None:
        self._epoch, self._used = epoch, used
        self.ahead: deque[Place] = deque()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        ahead = self.ahead
        for place in self._order.places(self._epoch, self._used):
            ahead.append(place)
            yield place.key, place.numbers

    def __len__(self) -> int:
        return self._order.steps(self._used)


class Batches(Dataset[Any]):
    """The batches of data, by their keys. One is the same whichever process reads it, and whatever was read before."""

    def __init__(self, data: Dataset[Any], collate: Collate = default_collate, *, is_single: bool = False) -> None:
        self._data, self._collate, self._is_single = data, collate, is_single
        is_its_own = isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__
        self._is_plain = is_its_own and not hasattr(data, "__getitems__") and collate is default_collate

    def __getitem__(self, key: tuple[str, Any]) -> Any:
        source, numbers = key
        if self._is_plain and not self._is_single:  # tensors, which can be indexed by a whole batch
            return self._data[numbers]
        with own_random_numbers(source):
            return self._collate(self._data[numbers] if self._is_single else samples_of(self._data, numbers))


def samples_of(data: Any, numbers: list[Any]) -> list[Any]:
    """These samples, by the data's own code, called as torch's loader calls it: with one number at a time, or with all."""
    if callable(getattr(data, "__getitems__", None)):
        samples: list[Any] = data.__getitems__(numbers)
        return samples
    return [data[number] for number in numbers]


def _as_it_is(value: Any) -> Any:
    return value
