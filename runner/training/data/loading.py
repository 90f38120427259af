"""How batches are made of samples, in this process or in others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset, default_collate

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.trees import length_of_batch
from runner.training.data.feed import Agree, Batch, Feed
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
        """Return a loader of data whose items are batches. ``keys``: of the batches, in their order; None for a stream."""
        settings = {name: value for name, value in vars(self).items() if value is not None}
        return DataLoader(data, batch_size=None, sampler=keys, collate_fn=_as_it_is, **settings)


class IndexedFeed(Feed):
    """Batches of data whose samples have keys. An epoch is taken up in its middle without reading what is before."""

    is_shared = True
    _epoch, _resumed = 0, dict[str, Any]()  # the second is replaced, and not changed

    def __init__(
        self, data: Dataset[Any], order: EpochOrder, reading: Reading, collate: Collate, *, agree: Agree | None = None
    ) -> None:
        """``agree``: adds up the ranks' samples if each item of the data is a batch, of which only its tensors tell how many; else None."""
        self.is_even, self._order, self._keys, self._agree = order.is_even and not agree, order, _Keys(order), agree
        self.loader = reading.loader(Batches(data, collate), self._keys)

    def steps(self, used: int) -> int | None:
        return self._order.steps(used)

    @property
    def is_stateful(self) -> bool:
        return isinstance(self._order, DrawnOrder)

    def state(self) -> Any:
        return {"epoch": self._epoch, "drawn": self._order.drawn}

    def load_state(self, state: Any) -> None:
        self._resumed = state

    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        self._keys.begin(epoch, used)
        self._epoch, before = epoch, self._resumed.get("drawn")
        if self._resumed.get("epoch") == epoch and used and before not in (None, self._order.drawn):
            with raised_on_all_ranks():
                raise UsageError(
                    f"--resume: the sampler draws other keys for epoch {epoch + 1} than in the run that began it",
                    fix="resume at the end of an epoch; to seed a sampler, give it set_epoch(), or draw by torch's global random numbers",
                )
        return self._placed(iter(self.loader), self._keys.ahead)

    def _placed(self, values: Iterator[Any], ahead: deque[Place]) -> Iterator[Batch]:
        for value in values:
            batch = ahead.popleft().batch._replace(value=value)
            if self._agree is not None:
                samples = batch.samples and (length_of_batch(value) or 1)
                batch = batch._replace(samples=samples, all_samples=self._agree(True, samples)[1])
            yield batch


class _Keys(Sampler["tuple[str, Any]"]):
    """The keys of an epoch's batches, for the loader. What else is known of a batch waits here until the loader gives it."""

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._places: Iterator[Place] | None = None
        self.ahead: deque[Place] = deque()

    def begin(self, epoch: int, used: int) -> None:
        self._places, self.ahead = self._order.places(epoch, used), deque()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        places, self._places, ahead = self._places or self._order.places(0, 0), None, self.ahead
        for place in places:
            ahead.append(place)
            yield place.source, place.batch.value


class Batches(Dataset[Any]):
    """The batches of data, by their keys. One is the same whichever process reads it, and whatever was read before."""

    def __init__(self, data: Dataset[Any], collate: Collate = default_collate) -> None:
        self._data, self._collate = data, collate
        is_its_own = isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__
        self._is_plain = is_its_own and not hasattr(data, "__getitems__") and collate is default_collate

    def __getitem__(self, key: tuple[str, Any]) -> Any:
        source, keys = key
        if self._is_plain:  # tensors, which can be indexed by a whole batch
            return self._data[keys]
        with own_random_numbers(source):
            return self._collate(samples_of(self._data, keys))


def samples_of(data: Any, keys: list[Any]) -> list[Any]:
    """Return the samples of these keys, by the data's own code, called as torch's loader calls it: one key at a time, or all."""
    if callable(getattr(data, "__getitems__", None)):
        samples: list[Any] = data.__getitems__(keys)
        return samples
    return [data[key] for key in keys]


def _as_it_is(value: Any) -> Any:
    return value
