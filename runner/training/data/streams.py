"""Batches of streams: data without numbers, which are read from the beginning on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from runner.base.errors import UsageError, raised_on_all_ranks
from runner.training.data.feed import Batch, Feed
from runner.training.data.loading import Collate, Reading
from runner.training.data.orders import tell_epoch
from runner.training.data.random_numbers import own_random_numbers

# (this rank's flag and samples) → whether all ranks have a batch, and the samples of all data-parallel ranks. Collective.
Agree = Callable[[bool, int], "tuple[bool, int]"]


class StreamPart(NamedTuple):
    """What a worker has read for one step.

    Attributes:
        value: the batch; one that does not count if this rank has no samples in this step.
        worker: which process has read it.
        state: of the data in that process after it, if the data tells it.
        is_batch: False: only keeps the place of a worker whose turn it is not yet.
    """

    value: Any
    samples: int
    worker: int
    state: Any
    is_batch: bool = True


class Resumed(NamedTuple):
    """Where a rank was in an epoch.

    Attributes:
        first: samples of the epoch that were used before, when it was begun or resumed without a state.
        last_worker: the process that gave the last batch.
        states: of each process: its place, and its data's; None before its first batch.
    """

    epoch: int
    first: int
    last_worker: int
    states: list[Any]


class StreamShare(IterableDataset[StreamPart]):
    """A rank's batches of a stream.

    A stream that does not shard itself is read from beginning to end by each worker of each rank, which keep every ``size``-th
    sample, and of those every ``workers``-th batch: so neither the number of ranks nor that of workers changes what a step trains
    on. Before each step random numbers are seeded alike on all ranks, as the stream has to be the same there.

    Args:
        batch_size: samples of a rank's batch; None: an item is a batch.
        shards_itself: on each rank and in each worker the stream gives other samples already.
    """

    def __init__(
        self,
        data: Any,
        rank: int,
        size: int,
        batch_size: int | None,
        seed: int,
        collate: Collate,
        *,
        drop_last: bool,
        shards_itself: bool,
    ) -> None:
        self._data, self._batch_size, self._seed, self._collate = data, batch_size, seed, collate
        self._rank, self._size = (0, 1) if shards_itself else (rank, size)
        self._drop_last, self.shards_itself = drop_last, shards_itself
        # Epoch, and samples to read past. In shared memory, as processes that live on have a copy of all else.
        self._start: Tensor = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]  # torch's
        self.resumed: Resumed | None = None

    @property
    def step_size(self) -> int:
        """How much of an epoch a step uses: samples of all ranks; 1 if the stream shards itself."""
        return 1 if self.shards_itself else (self._batch_size or 1) * self._size

    def begin(self, epoch: int, first: int) -> None:
        """The next iteration is of this epoch, after so many samples."""
        self._start[0], self._start[1] = epoch, first

    def __iter__(self) -> Iterator[StreamPart]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        epoch, first = self._start.tolist()
        tell_epoch(self._data, epoch)
        place, whole = 0, (self._batch_size or 1) * self._size
        if self.resumed and self.resumed.epoch == epoch:
            if state := self.resumed.states[worker]:
                place = state["place"]
                self._data.load_state_dict(state["data"])
            if worker <= self.resumed.last_worker:  # the loader asks the first worker first
                yield StreamPart(None, 0, worker, state, is_batch=False)
        with own_random_numbers(self._source(epoch, place)):
            samples = iter(self._data)
        while True:
            with own_random_numbers(self._source(epoch, place)):
                wanted = min(whole, first - place) if place < first else whole
                mine, spare, count = self._read(samples, wanted)
                is_mine = place >= first and (self.shards_itself or (place - first) // whole % workers == worker)
                read = mine or spare
                value = self._collate(read if self._batch_size else read[0]) if read and is_mine else None
            if count < wanted and (self._drop_last or not count):
                return
            place += count
            if is_mine:
                own = len(mine) if self._batch_size or not mine else _rows(value)
                yield StreamPart(value, own, worker, self._state(place))
            if count < wanted:
                return

    def _source(self, epoch: int, place: int) -> str:
        return f"{self._seed} sample {place} of a stream's epoch {epoch}"

    def _read(self, samples: Iterator[Any], wanted: int) -> tuple[list[Any], list[Any], int]:
        """This rank's of the next samples; one that takes their place if there are none; and how many all ranks have."""
        count, mine, spare = 0, [], []
        for sample in itertools.islice(samples, wanted):
            if count % self._size == self._rank:
                mine.append(sample)
            if not count:
                spare.append(sample)
            count += 1
        return mine, spare, count

    def _state(self, place: int) -> Any:
        tell = getattr(self._data, "state_dict", None)
        return {"place": place, "data": tell()} if callable(tell) else None


class StreamFeed(Feed):
    """Batches of a stream. An epoch ends on all ranks where the first of them has no batch left.

    Args:
        agree: see ``Agree``.
        say: prints a line, on one rank.
    """

    length = None

    def __init__(
        self, share: StreamShare, reading: Reading, agree: Agree, say: Callable[[str], None], *, is_stateful: bool
    ) -> None:
        self._share, self._agree, self._say = share, agree, say
        self._loader = reading.loader(share)
        self._workers = max(reading.num_workers, 1)
        self.is_stateful = is_stateful
        self._epoch, self._first = 0, 0
        self._states, self._last_worker = [None] * self._workers, -1

    def steps(self, used: int) -> None:
        return None

    def batches(self, epoch: int, used: int) -> Iterator[Batch]:
        share, drop = self._share, 0
        resumed = share.resumed if share.resumed and share.resumed.epoch == epoch else None
        self._epoch = epoch
        if resumed:
            self._first, self._states, self._last_worker = resumed.first, list(resumed.states), resumed.last_worker
        else:
            self._first, self._states, self._last_worker = 0, [None] * self._workers, -1
            if used:
                again = math.ceil(used / share.step_size)
                self._say(f"the data does not tell its place: {again} batches are read again, and dropped")
            if share.shards_itself:
                drop = used
            else:
                self._first = used
        share.begin(epoch, self._first)
        parts = (part for part in iter(self._loader) if part.is_batch)
        return self._agreed(itertools.islice(parts, drop, None), used)

    def _agreed(self, parts: Iterator[StreamPart], used: int) -> Iterator[Batch]:
        """The batches that all ranks have. Each rank has read one ahead, to know whether another follows."""
        part, whole = self._next(parts)
        if part is None and not used:
            with raised_on_all_ranks():
                raise UsageError(
                    f"the data ends in epoch {self._epoch + 1} before each data-parallel rank has a batch",
                    fix="take a smaller batch, fewer ranks, or more data",
                )
        while part is not None:
            self._states[part.worker], self._last_worker = part.state, part.worker
            following, next_whole = self._next(parts)
            used += self._share.step_size
            yield Batch(part.value, part.samples, whole, used, is_last=following is None)
            part, whole = following, next_whole

    def _next(self, parts: Iterator[StreamPart]) -> tuple[StreamPart | None, int]:
        part = next(parts, None)
        all_have, whole = self._agree(part is not None, part.samples if part else 0)
        return (part, whole) if all_have else (None, 0)

    def state(self) -> Any:
        return {"epoch": self._epoch, "first": self._first, "last": self._last_worker, "states": list(self._states)}

    def load_state(self, state: Any) -> None:
        before = len(state["states"])
        if before != self._workers:
            raise UsageError(
                f"--resume: {before} processes per rank had their own places in the data, and here are {self._workers}",
                fix=f"take --workers {before}, or resume at the end of an epoch",
            )
        self._share.resumed = Resumed(state["epoch"], state["first"], state["last"], state["states"])


def _rows(batch: Any) -> int:
    """The samples of a batch that was made elsewhere: the first dimension of its first tensor, or 1."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((_rows(part) for part in parts), 1)
