"""The making of batches from samples that have keys, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset, default_collate

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.training.data.feed import Batch, Feed
from runner.training.data.orders import DrawnOrder, EpochOrder, Place
from runner.training.data.random_numbers import own_random_numbers

Collate = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Settings of the processes that read data, named as torch's ``DataLoader`` names them."""

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None

    def loader(self, data: Dataset[Any], keys: Sampler[Any] | None = None) -> DataLoader[Any]:
        """Return a loader of data whose items are batches, in the order of ``keys``; None for a stream."""
        return DataLoader(data, batch_size=None, sampler=keys, collate_fn=_as_it_is, **vars(self))


class IndexedFeed(Feed):
    """Batches of data whose samples have keys. A resume in mid-epoch does not read the samples before its place."""

    is_shared = True

    def __init__(self, data: Dataset[Any], order: EpochOrder, reading: Reading, collate: Collate) -> None:
        self._order, self._epoch = order, _Epoch()
        self.is_even, self.is_stateful = order.is_even, isinstance(order, DrawnOrder)
        self.loader = reading.loader(_Batches(data, collate), self._epoch)

    def steps(self, used: int) -> int | None:
        return self._order.steps(used)

    def begin(self, epoch: int, used: int) -> None:
        """Have the loader read what is left of an epoch of which this much is used. Collective if a sampler of the user's draws."""
        self._epoch.places = self._order.places(epoch, used)
        self.state, resumed = {"epoch": epoch, "drawn": self._order.drawn}, self.resumed or {}
        before = resumed.get("drawn") if resumed.get("epoch") == epoch else None
        if used and before not in (None, self._order.drawn):
            with raised_on_all_ranks():
                raise UsageError(
                    f"--resume: the sampler draws other keys for epoch {epoch + 1} than in the run that began it",
                    fix="resume at the end of an epoch; to seed a sampler, give it set_epoch(), or draw by torch's global random numbers",
                )

    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        self.begin(epoch, used)
        return iter(self.loader)


class _Epoch(Sampler[Place]):
    """The places that are left of an epoch, for the loader."""

    def __init__(self) -> None:
        self.places: Iterator[Place] = iter(())

    def __iter__(self) -> Iterator[Place]:
        return self.places


class _Batches(Dataset[Batch]):
    """The batches of data by their places. A batch is the same whichever process reads it, and whatever was read before."""

    def __init__(self, data: Dataset[Any], collate: Collate) -> None:
        self._data, self._collate = data, collate
        is_its_own = isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__
        self._is_plain = is_its_own and not hasattr(data, "__getitems__") and collate is default_collate

    def __getitem__(self, place: Place) -> Batch:
        keys = place.batch.value
        if self._is_plain:  # tensors, which can be indexed by a whole batch
            return place.batch._replace(value=self._data[keys])
        with own_random_numbers(place.source):
            return place.batch._replace(value=self._collate(samples_of(self._data, keys)))


class Yielded(IterableDataset[Any]):
    """The batches that a function yields in the process that reads them."""

    def __init__(self, function: Callable[[], Iterator[Any]]) -> None:
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        return self._function()


def samples_of(data: Any, keys: list[Any]) -> list[Any]:
    """Return the samples of these keys as torch's loader reads them: all at once by ``__getitems__``, else one at a time."""
    if callable(getattr(data, "__getitems__", None)):
        samples: list[Any] = data.__getitems__(keys)
        return samples
    return [data[key] for key in keys]


def _as_it_is(value: Any) -> Any:
    return value
