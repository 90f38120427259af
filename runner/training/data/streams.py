"""Batches of streams: of samples or of batches, without keys, which are read from the beginning on."""

from __future__ import annotations

import copy
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.trees import length_of_batch
from runner.training.data.feed import Agree, Batch, Feed
from runner.training.data.loading import Collate, Reading
from runner.training.data.orders import tell_epoch
from runner.training.data.random_numbers import own_random_numbers

_END = object()


class StreamPart(NamedTuple):
    """The part of a stream that a rank has read for one step.

    Attributes:
        value: the batch; one that does not count if this rank has no samples in this step.
        state: of the stream after it; None if the stream does not tell its place.
    """

    value: Any
    samples: int
    state: Any


class StreamFeed(Feed):
    """Batches of a stream. An epoch ends on all ranks where the first of them has no batch left.

    Args:
        agree: see ``Agree``.
        say: prints a line, on one rank.
        shards_itself: the stream gives other samples on each rank; else it gives the same, of which each takes its part.
    """

    step_size: int  # how much of an epoch a step uses; 1 if the stream shards itself

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
        tells = [callable(getattr(data, name, None)) for name in ("state_dict", "load_state_dict")]
        self._tells, self.is_shared = all(tells), not shards_itself  # whether the stream tells its place in an epoch
        self._state: dict[str, Any] = {}
        self._resumed: dict[str, Any] = {}

    @property
    def is_stateful(self) -> bool:
        return self._tells or not self.is_shared

    @abstractmethod
    def _parts(self, epoch: int, used: int, state: Any) -> Iterator[StreamPart]:
        """Return what this rank reads for the steps that are left. ``state``: of the stream there, if it tells its place."""

    def steps(self, used: int) -> None:
        return None

    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        state = self._resumed.get("data") if self._resumed.get("epoch") == epoch else None
        if used and state is None:
            again = math.ceil(used / self.step_size)
            self._say(f"the data does not tell its place: {again} batches are read again, and dropped")
        return self._agreed(self._parts(epoch, used, state), epoch, used)

    def _agreed(self, parts: Iterator[StreamPart], epoch: int, used: int) -> Iterator[Batch]:
        """The batches that all ranks have. Each rank has read one ahead, to know whether another follows."""
        part, whole = self._next(parts)
        if part is None and not used:
            with raised_on_all_ranks():
                raise UsageError(
                    f"the data ends in epoch {epoch + 1} before each data-parallel rank has a batch",
                    fix="take a smaller batch, fewer ranks or more data; and an object with __iter__, not an iterator, which has one epoch",
                )
        while part is not None:
            self._state = {"epoch": epoch, "data": part.state}
            following, next_whole = self._next(parts)
            used += self.step_size
            yield Batch(part.value, part.samples, whole, used, is_last=following is None)
            part, whole = following, next_whole

    def _next(self, parts: Iterator[StreamPart]) -> tuple[StreamPart | None, int]:
        part = next(parts, None)
        all_have, whole = self._agree(part is not None, part.samples if part else 0)
        return (part, whole) if all_have else (None, 0)

    def state(self) -> Any:
        return self._state

    def load_state(self, state: Any) -> None:
        self._resumed = state


class SampleStream(StreamFeed):
    """Batches that are made here of a stream of samples, of which each rank takes one of every ``size``.

    One process at most reads a stream that does not shard itself: each further one would have to read it from beginning to end, too.
    """

    def __init__(self, *data: Any, batch_size: int, collate: Collate, reading: Reading, **how: Any) -> None:
        super().__init__(*data, **how)
        workers = min(reading.num_workers, 1) if self.is_shared else reading.num_workers
        self._reading = replace(reading, num_workers=workers, persistent_workers=False)
        self._tells = self._tells and workers < 2
        self._batch_size, self._collate = batch_size, collate
        self.step_size = batch_size * self._size if self.is_shared else 1

    def _parts(self, epoch: int, used: int, state: Any) -> Iterator[StreamPart]:
        drop = 0 if self.is_shared or state is not None else used  # of each process's own
        read = _Read(lambda: self._samples(epoch, 0 if drop else used, state))
        return itertools.islice(self._reading.loader(read), drop, None)

    def _samples(self, epoch: int, used: int, state: Any) -> Iterator[StreamPart]:
        tell_epoch(self._data, epoch)
        place, whole = 0, self._batch_size * self._size
        used *= 1 if self.is_shared else self._batch_size
        if state is not None:
            self._data.load_state_dict(state)
            place = used
        with own_random_numbers(self._source(epoch, place)):
            samples = iter(self._data)
        while True:
            wanted = min(whole, used - place) if place < used else whole
            with own_random_numbers(self._source(epoch, place)):
                mine, spare, count = self._read(samples, wanted)
                value = self._collate(mine or spare) if spare and place >= used else None
            if count < wanted and (self._drop_last or not count):
                return
            if place >= used:
                yield StreamPart(value, len(mine), copy.deepcopy(self._data.state_dict()) if self._tells else None)
            place += count

    def _source(self, epoch: int, place: int) -> str:
        return f"{self._seed} sample {place} of a stream's epoch {epoch}"

    def _read(self, samples: Iterator[Any], wanted: int) -> tuple[list[Any], list[Any], int]:
        """This rank's of the next samples; one that takes their place if there are none; and how many all ranks have."""
        count, mine, spare = 0, list[Any](), list[Any]()
        for count, sample in enumerate(itertools.islice(samples, wanted), 1):
            if (count - 1) % self._size == self._rank:
                mine.append(sample)
            spare = spare or [sample]
        return mine, spare, count


class _Read(IterableDataset[StreamPart]):  # in a loader's process
    def __init__(self, parts: Callable[[], Iterator[StreamPart]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[StreamPart]:
        return self._parts()


class BatchStream(StreamFeed):
    """Batches that a loader of the user's makes, in its own way and order: batch k of every ``size`` is that of rank k.

    Each rank iterates the whole, whose random numbers are seeded alike on all ranks.

    Args:
        alike: whether all ranks have the same batch, or none. Collective.
        has_one_size: refuse a batch of another size than the first's.
    """

    is_even = False

    def __init__(self, *data: Any, alike: Callable[[Any], bool], has_one_size: bool, **how: Any) -> None:
        super().__init__(*data, **how)
        self._alike, self._has_one_size, self.step_size = alike, has_one_size, self._size
        self._name, self._rows = type(self._data).__name__, 0
        if self._size > 1:
            self._say(f"{self._name} gives batches: each rank iterates the whole, and takes one of every {self._size}")

    def _parts(self, epoch: int, used: int, state: Any) -> Iterator[StreamPart]:
        if state is not None:
            self._data.load_state_dict(state)
        batches = self._batches(epoch, 0 if state is None else used)
        if state is None:
            batches = itertools.islice(batches, used, None)
        while found := list(itertools.islice(batches, self._size)):
            if self._drop_last and len(found) < self._size:
                return
            rows = [self._count(batch) for batch in found]
            is_own = self._rank < len(found)
            value = found[self._rank if is_own else 0]
            del found  # not to hold the other ranks' while this one is trained on
            state = copy.deepcopy(self._data.state_dict()) if self._tells else None
            yield StreamPart(value, rows[self._rank] if is_own else 0, state)

    def _batches(self, epoch: int, place: int) -> Iterator[Any]:
        for one in (self._data, getattr(self._data, "dataset", None)):
            tell_epoch(one, epoch)
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
            yield batch

    def _count(self, batch: Any) -> int:
        rows = length_of_batch(batch)
        if rows is None and not self._rows:
            self._say(f"{self._name}: the tensors of a batch have no common length, so a batch counts as one sample")
        rows = rows or 1
        if self._has_one_size and rows != (self._rows or rows):
            with raised_on_all_ranks():
                raise UsageError(
                    f"--pp: stages take batches of one size, and {self._name} gives {self._rows} samples, then {rows}",
                    fix="make batches of one size, for example by drop_last=True",
                )
        self._rows = self._rows or rows
        return rows
