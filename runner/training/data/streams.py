"""Batches of streams: of samples or of batches without keys, which are read from the beginning on."""

from __future__ import annotations

import copy
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.trees import length_of_batch
from runner.training.data.feed import Agree, Batch, Feed
from runner.training.data.loading import Collate, Reading, Yielded
from runner.training.data.orders import tell_epoch
from runner.training.data.random_numbers import own_random_numbers

_END = object()

# A rank's part of a stream for one step: the batch, how many samples of it count, and the stream's state after it, if it tells that.
StreamPart = tuple[Any, int, Any]


class StreamFeed(Feed):
    """Batches of a stream of items. An epoch ends on all ranks when the first of them has no batch left.

    Args:
        say: prints a line, on one rank.
        shards_itself: the stream gives different items on each rank; else it gives the same, and each rank takes its part.
    """

    step_items: int  # the items that a step takes from the stream
    step_size: int  # how much of an epoch a step uses

    def __init__(
        self,
        data: Any,
        rank: int,
        size: int,
        seed: int,
        agree: Agree,
        say: Callable[[str], None],
        *,
        drop_last: bool,
        shards_itself: bool,
    ) -> None:
        self._data, self._seed, self._agree, self._say, self._drop_last = data, seed, agree, say, drop_last
        self._rank, self._size = (0, 1) if shards_itself else (rank, size)
        self._tells = all(callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict"))
        self.is_shared = not shards_itself
        self.is_stateful = self._tells or shards_itself

    def steps(self, used: int) -> None:
        return None

    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        """Yield the batches that all ranks have. Each rank has read one ahead, to know whether another follows."""
        resumed = self.resumed or {}
        state = resumed.get("data") if resumed.get("epoch") == epoch else None
        if used and state is None:
            again = math.ceil(used / self.step_size)
            self._say(f"the data does not tell its place: {again} batches are read again, and dropped")
        parts = self._read(epoch, used, state)
        part, whole = self._next(parts)
        if part is None and not used:
            with raised_on_all_ranks():
                raise UsageError(
                    f"the data ends in epoch {epoch + 1} before each data-parallel rank has a batch",
                    fix="take a smaller batch, fewer ranks or more data; and an object with __iter__, not an iterator, which has one epoch",
                )
        while part is not None:
            value, samples, state = part
            self.state = {"epoch": epoch, "data": state}
            following, next_whole = self._next(parts)
            used += self.step_size
            yield Batch(value, samples, whole, used, is_last=following is None)
            part, whole = following, next_whole

    def _next(self, parts: Iterator[StreamPart]) -> tuple[StreamPart | None, int]:
        part = next(parts, None)
        all_have, whole = self._agree(part is not None, part[1] if part else 0)
        return (part, whole) if all_have else (None, 0)

    def _read(self, epoch: int, used: int, state: Any) -> Iterator[StreamPart]:
        """Yield what this rank reads for the steps that are left. ``state`` is the stream's there; None if it is not known."""
        for one in (self._data, getattr(self._data, "dataset", None)):
            tell_epoch(one, epoch)
        used *= self.step_items // self.step_size
        place = 0
        if state is not None:
            self._data.load_state_dict(state)
            place = used
        source = f"{self._seed} sample {{}} of a stream's epoch {epoch}".format
        with own_random_numbers(source(place)):
            items = self._items(epoch, place)
        while True:
            wanted = min(self.step_items, used - place) if place < used else self.step_items
            with own_random_numbers(source(place)):
                read, own, count = self._take(items, wanted)
                if count < wanted and (self._drop_last or not count):
                    return
                if place >= used:
                    value, samples = self._made(read, own)
            if place >= used:
                yield value, samples, copy.deepcopy(self._data.state_dict()) if self._tells else None
            place += count

    def _items(self, epoch: int, place: int) -> Iterator[Any]:
        """Return the stream's items from this place on."""
        return iter(self._data)

    def _take(self, items: Iterator[Any], wanted: int) -> tuple[list[Any], int, int]:
        """Return this rank's share of the next items (the first item if it has none), its length, and how many items there were."""
        count, mine, spare = 0, list[Any](), list[Any]()
        for count, item in enumerate(itertools.islice(items, wanted), 1):
            if (count - 1) % self._size == self._rank:
                mine.append(item)
            spare = spare or [item]
        return mine or spare, len(mine), count

    @abstractmethod
    def _made(self, read: list[Any], own: int) -> tuple[Any, int]:
        """Return the batch that these items make, and how many samples of it count. ``own``: how many items are this rank's."""


class SampleStream(StreamFeed):
    """Batches that are made here of a stream of samples; each rank takes one of every ``size`` samples.

    At most one process reads a stream that does not shard itself, because each process has to read the whole.
    """

    def __init__(self, *data: Any, batch_size: int, collate: Collate, reading: Reading, **how: Any) -> None:
        super().__init__(*data, **how)
        workers = min(reading.num_workers, 1) if self.is_shared else reading.num_workers
        self._reading = replace(reading, num_workers=workers, persistent_workers=False)
        self._tells = self._tells and workers < 2
        self._collate, self.step_items = collate, batch_size * self._size
        self.step_size = self.step_items if self.is_shared else 1

    def _read(self, epoch: int, used: int, state: Any) -> Iterator[StreamPart]:
        drop = 0 if self.is_shared or state is not None else used  # each process reads its own samples again
        read = super()._read
        parts = Yielded(lambda: read(epoch, 0 if drop else used, state))
        return itertools.islice(self._reading.loader(parts), drop, None)

    def _made(self, read: list[Any], own: int) -> tuple[Any, int]:
        return self._collate(read), own


class BatchStream(StreamFeed):
    """Batches that a loader of the user's makes, in its own way and order; rank k takes batch k of every ``size``.

    Each rank iterates the whole, whose random numbers are seeded alike on all ranks.

    Args:
        alike: returns whether all ranks have the same batch, or none. Collective.
        has_one_size: refuse a batch whose size differs from that of the first.
    """

    is_even = False

    def __init__(self, *data: Any, alike: Callable[[Any], bool], has_one_size: bool, **how: Any) -> None:
        super().__init__(*data, **how)
        self._alike, self._has_one_size, self.step_size = alike, has_one_size, self._size
        self.step_items = self._size
        self._name, self._rows = type(self._data).__name__, 0
        if self._size > 1:
            self._say(f"{self._name} gives batches: each rank iterates the whole, and takes one of every {self._size}")

    def _items(self, epoch: int, place: int) -> Iterator[Any]:
        with own_random_numbers(f"{self._seed} epoch {epoch} of a loader"):
            batches = iter(self._data)
        for number in itertools.count(place):
            with own_random_numbers(f"{self._seed} batch {number} of epoch {epoch}"):
                batch = next(batches, _END)
            if number == place and self.is_shared and not self._alike(batch):
                with raised_on_all_ranks():
                    raise UsageError(
                        f"{self._name} gives other batches on each rank",
                        fix="seed its random numbers alike on all ranks; or, if it gives each rank its own part, say "
                        "Task(…, shards_itself=True), or loader.shards_itself = True",
                    )
            if batch is _END:
                return
            self._check(length_of_batch(batch))
            yield batch

    def _check(self, rows: int | None) -> None:
        if rows is None and not self._rows:
            self._say(f"{self._name}: the tensors of a batch have no common length, so a batch counts as one sample")
        rows = rows or 1
        self._rows = self._rows or rows
        if self._has_one_size and rows != self._rows:
            with raised_on_all_ranks():
                raise UsageError(
                    f"--pp: stages take batches of one size, and {self._name} gives {self._rows} samples, then {rows}",
                    fix="make batches of one size, for example by drop_last=True",
                )

    def _made(self, read: list[Any], own: int) -> tuple[Any, int]:
        return read[0], own and (length_of_batch(read[0]) or 1)
