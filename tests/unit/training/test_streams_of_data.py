"""Streams of samples and of batches are shared: each item once, on any number of ranks, from any place of the epoch on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from runner.base.errors import UsageError
from runner.training.data.feed import Batch
from runner.training.data.loading import Reading
from runner.training.data.streams import BatchStream, SampleStream

many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are cores


class Numbers(IterableDataset[Any]):
    """The numbers below a length, each with a random one; tells its place if it is asked to."""

    def __init__(self, length: int) -> None:
        self.length, self.read, self.start = length, 0, 0

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        for number in range(start, self.length):
            self.read = number + 1
            yield torch.tensor(number), torch.rand(())


class Telling(Numbers):
    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["read"]


def stream(
    data: Any, rank: int, size: int, each: int, workers: int = 0, said: list[str] | None = None, **more: Any
) -> SampleStream:
    settings: Any = {"drop_last": True, "shards_itself": False, "batch_size": each, "collate": default_collate} | more
    say, reading = (said if said is not None else []).append, Reading(num_workers=workers)
    return SampleStream(data, rank, size, 3, lambda has, _: (has, 0), say, reading=reading, **settings)


def streamed(length: int, size: int, each: int, workers: int = 0, used: int = 0, **more: Any) -> list[list[list[int]]]:
    """The samples of each rank in each step."""
    ranks = [
        [
            batch.value[0].tolist()[: batch.samples]
            for batch in stream(Numbers(length), rank, size, each, workers, **more).batches(0, used)
        ]
        for rank in range(size)
    ]
    return [list(step) for step in zip(*ranks, strict=True)]


@given(st.data())
def test_a_stream_is_shared_by_ranks_as_data_is(data: st.DataObject) -> None:
    length, each, size = (
        data.draw(st.integers(8, 60)),
        data.draw(st.integers(1, 2)),
        data.draw(st.sampled_from([1, 2, 4])),
    )
    drop_last = data.draw(st.booleans())
    found = streamed(length, size, each, drop_last=drop_last)
    whole = each * size
    together = [sorted(itertools.chain(*step)) for step in found]
    end = length // whole * whole if drop_last else length
    assert together == [list(range(start, min(start + whole, end))) for start in range(0, end, whole)]
    done = data.draw(st.integers(0, len(found) - 1))
    assert streamed(length, size, each, used=done * whole, drop_last=drop_last) == found[done:]


@many_workers
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_not_change_a_stream(workers: int) -> None:
    assert streamed(50, 2, 3, workers) == streamed(50, 2, 3)
    assert streamed(50, 2, 3, workers, used=12) == streamed(50, 2, 3)[2:]


def test_random_numbers_of_a_stream_are_the_same_on_all_ranks_and_after_a_resume() -> None:
    def drawn(rank: int, used: int = 0, workers: int = 0) -> list[list[float]]:
        return [batch.value[1].tolist() for batch in stream(Numbers(40), rank, 2, 4, workers).batches(1, used)]

    whole = drawn(0)
    assert len({number for batch in whole for number in batch}) == 20
    assert drawn(0, used=16) == whole[2:]
    assert drawn(0, workers=2) == whole


@many_workers
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("itself", [False, True])
def test_a_stream_that_tells_its_place_is_taken_up_there(workers: int, itself: bool) -> None:
    """Of a stream that shards itself, each worker here gives all numbers; several of them are read again up to there."""
    for stop in (1, 2, 5):
        first = stream(Telling(24), 1, 2, 2, workers, shards_itself=itself)
        batches = first.batches(0, 0)
        used = [next(batches) for _ in range(stop)][-1].used
        state = first.state
        rest = [batch.value[0].tolist() for batch in batches]
        said: list[str] = []
        again = stream(Telling(24), 1, 2, 2, workers, said, shards_itself=itself)
        again.resumed = state
        assert [batch.value[0].tolist() for batch in again.batches(0, used)] == rest
        assert bool(said) == (itself and workers > 1)
        assert len(list(again.batches(1, 0))) == stop + len(rest), "the next epoch is a whole one"


@pytest.mark.parametrize("itself", [False, True])
def test_a_stream_that_does_not_is_read_again_and_that_is_said(itself: bool) -> None:
    said: list[str] = []
    whole = [batch.value[0].tolist() for batch in stream(Numbers(24), 0, 1, 2, shards_itself=itself).batches(0, 0)]
    used = 3 if itself else 6
    found = stream(Numbers(24), 0, 1, 2, said=said, shards_itself=itself).batches(0, used)
    assert [batch.value[0].tolist() for batch in found] == whole[3:]
    assert said == ["the data does not tell its place: 3 batches are read again, and dropped"]


def test_an_epoch_of_a_stream_ends_with_the_shortest_rank() -> None:
    """One rank of two; the other has three batches."""
    answers = iter([(True, 4), (True, 4), (True, 4), (False, 2)])
    feed = stream(Numbers(24), 0, 1, 2, shards_itself=True)
    feed._agree = lambda has, samples: next(answers)
    found = list(feed.batches(0, 0))
    assert [batch.is_last for batch in found] == [False, False, True]
    assert [batch.all_samples for batch in found] == [4, 4, 4]


def test_a_stream_without_a_batch_is_refused() -> None:
    with pytest.raises(UsageError, match="the data ends in epoch 1 before each data-parallel rank has a batch"):
        list(stream(Numbers(3), 0, 2, 2).batches(0, 0))


class Loader:
    """Gives batches of the numbers below 20, of sizes of its own; tells its place if it is asked to."""

    SIZES = (3, 1, 4, 4, 2, 4, 2)

    def __iter__(self) -> Iterator[Any]:
        numbers = iter(range(20))
        for size in self.SIZES:
            yield torch.tensor(list(itertools.islice(numbers, size))), torch.rand(size)


class TellingLoader(Loader):
    place = start = 0

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        for self.place, batch in enumerate(super().__iter__(), 1):
            if self.place > start:
                yield batch

    def state_dict(self) -> dict[str, int]:
        return vars(self)  # shared memory, as torch's own

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["place"]


def batch_stream(loader: Any, rank: int, size: int, said: list[str] | None = None, **more: Any) -> BatchStream:
    settings: Any = {"drop_last": False, "shards_itself": False, "has_one_size": False} | more
    say = (said if said is not None else []).append
    return BatchStream(loader, rank, size, 3, lambda *mine: mine, say, alike=lambda batch: True, **settings)


def dealt(size: int, used: int = 0, **more: Any) -> list[list[Batch]]:
    ranks = [list(batch_stream(Loader(), rank, size, **more).batches(0, used)) for rank in range(size)]
    return [list(step) for step in zip(*ranks, strict=True)]


def values(batches: Iterable[Batch]) -> list[tuple[list[int], list[float]]]:
    return [(batch.value[0].tolist(), batch.value[1].tolist()) for batch in batches if batch.samples]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_of_a_loader_are_dealt_out(size: int) -> None:
    """Their random numbers do not depend on the ranks; those that do not count come in the last round."""
    alone, given = [step[0] for step in dealt(1)], [batch for step in dealt(size) for batch in step]
    assert values(given) == values(alone)
    assert tuple(batch.samples for batch in given if batch.samples) == Loader.SIZES
    assert [bool(batch.samples) for batch in given] == [True] * 7 + [False] * (-7 % size)
    whole_rounds = dealt(size, drop_last=True)
    assert len(whole_rounds) == 7 // size
    assert whole_rounds[-1][0].is_last
    assert values(batch for step in dealt(size, used=2) for batch in step) == values(alone[2:])


def test_a_place_of_a_loader_is_that_of_the_batch_that_was_given_last() -> None:
    """It has read a round ahead. Another number of ranks continues there."""
    first = batch_stream(TellingLoader(), 0, 2)
    batches = first.batches(0, 0)
    used = [next(batches) for _ in range(2)][-1].used
    said: list[str] = []
    again = batch_stream(TellingLoader(), 0, 1, said)
    again.resumed = first.state
    assert first.is_shared
    assert [batch.value[0].tolist() for batch in again.batches(0, used)] == [
        step[0].value[0].tolist() for step in dealt(1)[4:]
    ]
    assert not said


def test_what_a_loader_gives_is_compared() -> None:
    feed = batch_stream(Loader(), 0, 2)
    feed._alike = lambda batch: False
    with pytest.raises(
        UsageError, match=r"Loader gives other batches on each rank; seed .* say Task\(…, shards_itself=True\)"
    ):
        next(feed.batches(0, 0))
    own = batch_stream(Loader(), 1, 2, shards_itself=True)
    assert not own.is_shared
    assert len(list(own.batches(0, 0))) == 7
    with pytest.raises(UsageError, match="--pp: stages take batches of one size, and Loader gives 3 samples, then 1"):
        list(batch_stream(Loader(), 0, 1, has_one_size=True).batches(0, 0))


class ByWorker(IterableDataset[int]):
    """Splits its numbers by worker, as torch's documentation shows it."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(info.id if info else 0, 12, info.num_workers if info else 1))


@many_workers
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_that_splits_itself_by_worker_loses_nothing(workers: int) -> None:
    found = stream(ByWorker(), 0, 1, 3, workers).batches(0, 0)
    assert [number for batch in found for number in batch.value.tolist()] == list(range(12))
    loader = DataLoader(ByWorker(), 3, num_workers=workers)
    given = batch_stream(loader, 0, 1).batches(0, 0)
    assert sorted(number for batch in given for number in batch.value.tolist()) == list(range(12))
