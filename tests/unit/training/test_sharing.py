"""Data of every kind is shared alike: each sample once, on any number of ranks, from any place of the epoch on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from runner.base.errors import UsageError
from runner.training.data.feed import Batch
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.orders import DrawnSampler, EpochOrder, SampleOrder
from runner.training.data.source import Source, order_of, reading_of, source_of, with_batch_of
from runner.training.data.streams import StreamFeed, StreamShare
from runner.training.settings import Settings

EACH = 4
many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are cores


def source(**parts: Any) -> Source:
    """Of a task with these parts, as far as data is concerned."""
    task: Any = SimpleNamespace(**parts)
    return source_of(task)


def steps(given: Source, size: int, each: int, *, epoch: int = 0, used: int = 0) -> list[list[Batch]]:
    """The batches of all ranks in each step, and that all have as many."""
    options = Settings(batch_size=each, seed=3)

    def feed(rank: int) -> IndexedFeed:
        order: EpochOrder = order_of(given, rank, size, options)
        return IndexedFeed(given.data, order, Reading(), given.collate, is_single=given.is_single)

    ranks = [list(feed(rank).batches(epoch, used)) for rank in range(size)]
    together = [list(batches) for batches in zip(*ranks, strict=True)]
    for batches in together:
        assert len({(batch.used, batch.all_samples, batch.is_last) for batch in batches}) == 1
        assert sum(batch.samples for batch in batches) == batches[0].all_samples
    assert [batches[0].is_last for batches in together] == [False] * (len(together) - 1) + [True] * bool(together)
    return together


def numbers(step: list[Batch]) -> list[int]:
    """The samples of a step that count, each named by its number."""
    return sorted(number for batch in step for number in batch.value[0].tolist()[: batch.samples])


def plain(length: int) -> TensorDataset:
    return TensorDataset(torch.arange(length))


@given(st.data())
def test_without_drop_last_every_sample_comes_once_on_any_number_of_ranks(data: st.DataObject) -> None:
    length, each, size = (
        data.draw(st.integers(1, 60)),
        data.draw(st.integers(1, 4)),
        data.draw(st.sampled_from([1, 2, 4])),
    )
    given = source(train_data=plain(length), drop_last=False)
    whole = steps(given, size, each)
    assert sorted(itertools.chain(*map(numbers, whole))) == list(range(length))
    assert list(map(numbers, whole)) == list(map(numbers, steps(given, 1, each * size)))
    done = data.draw(st.integers(0, len(whole) - 1))
    rest = steps(given, size, each, used=done * each * size)
    assert list(map(numbers, rest)) == list(map(numbers, whole[done:]))


def test_a_rank_without_samples_has_a_batch_that_does_not_count() -> None:
    *_, last = steps(source(train_data=plain(9), drop_last=False), 4, 2)
    assert [batch.samples for batch in last] == [1, 0, 0, 0]
    assert [len(batch.value[0]) for batch in last] == [1, 1, 1, 1]


def weighted(length: int) -> DataLoader[Any]:
    sampler = WeightedRandomSampler([1.0 + number % 3 for number in range(length)], length)
    return DataLoader(plain(length), EACH, sampler=sampler, drop_last=True)


@given(st.integers(16, 80), st.integers(0, 2))
def test_a_sampler_draws_the_same_on_any_number_of_ranks(length: int, epoch: int) -> None:
    whole = steps(source(train_data=weighted(length)), 2, EACH, epoch=epoch)
    torch.rand(5)  # other random numbers outside
    assert list(map(numbers, whole)) == list(
        map(numbers, steps(source(train_data=weighted(length)), 1, 8, epoch=epoch))
    )
    rest = steps(source(train_data=weighted(length)), 2, EACH, epoch=epoch, used=8)
    assert list(map(numbers, rest)) == list(map(numbers, whole[1:]))


@given(st.integers(16, 80), st.sampled_from([1, 2, 4]))
def test_a_loader_that_shuffles_is_shuffled_as_the_data_itself(length: int, size: int) -> None:
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(plain(length), 4, shuffle=True, generator=generator, drop_last=True)
    theirs, ours = steps(source(train_data=loader), size, 4), steps(source(train_data=plain(length)), size, 4)
    assert list(map(numbers, theirs)) == list(map(numbers, ours))


def test_a_loader_in_order_stays_in_order() -> None:
    found = steps(source(train_data=DataLoader(plain(10), 2)), 2, 2)
    assert list(map(numbers, found)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class ByLength(BatchSampler):
    """Batches of one, two, three, one, … neighbours."""

    def __init__(self, length: int) -> None:
        super().__init__(SequentialSampler(range(length)), 1, drop_last=False)
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        left, count = list(range(self.length)), itertools.cycle([1, 2, 3])
        batches = []
        while left:
            each = next(count)
            batches.append(left[:each])
            left = left[each:]
        for number in torch.randperm(len(batches)).tolist():
            yield batches[number]

    def __len__(self) -> int:
        sizes = itertools.accumulate(itertools.cycle([1, 2, 3]))
        return next(number for number, total in enumerate(sizes, 1) if total >= self.length)


@given(st.integers(8, 80), st.sampled_from([1, 2, 3]), st.booleans())
def test_each_rank_takes_every_nth_batch_of_a_batch_sampler(length: int, size: int, drop_last: bool) -> None:
    given = source(train_data=plain(length), batch_sampler=ByLength(length), drop_last=drop_last)
    alone = steps(given, 1, EACH, epoch=1)
    whole = steps(given, size, EACH, epoch=1)
    assert len(whole) == (len(alone) // size if drop_last else -(-len(alone) // size))
    of_all = [numbers([batch]) for step in whole for batch in step if batch.samples]
    assert of_all == [numbers(step) for step in alone[: len(of_all)]]
    assert drop_last or sorted(itertools.chain(*of_all)) == list(range(length))
    assert list(map(numbers, steps(given, size, EACH, epoch=1, used=size))) == list(map(numbers, whole[1:]))


def test_a_distributed_sampler_is_used_as_it_is() -> None:
    data = plain(16)
    loaders = [
        DataLoader(data, 2, sampler=DistributedSampler(data, num_replicas=2, rank=rank, seed=1)) for rank in range(2)
    ]
    order = order_of(source(train_data=loaders[1]), 1, 2, Settings(batch_size=2))
    feed = IndexedFeed(data, order, Reading(), default_collate)
    found = [batch.value[0].tolist() for batch in feed.batches(3, 0)]
    loaders[1].sampler.set_epoch(3)  # type: ignore[attr-defined]
    assert found == [batch[0].tolist() for batch in loaders[1]]
    assert [batch.value[0].tolist() for batch in feed.batches(3, 8)] == found[2:]
    with pytest.raises(
        UsageError, match=r"DistributedSampler is of rank 1 of 2, and this is data-parallel rank 1 of 4"
    ):
        order_of(source(train_data=loaders[1]), 1, 4, Settings(batch_size=2))


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
) -> StreamFeed:
    settings = {"drop_last": True, "shards_itself": False} | more
    share = StreamShare(data, rank, size, each, 3, default_collate, **settings)
    is_stateful = hasattr(data, "state_dict")
    agree = lambda has, samples: (has, 0)  # noqa: E731  # of ranks that have equally many
    say = (said if said is not None else []).append
    return StreamFeed(share, Reading(num_workers=workers), agree, say, is_stateful=is_stateful)


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
    """Of a stream that shards itself, each worker here gives all numbers: the state is each worker's own."""
    for stop in (1, 2, 5):
        first = stream(Telling(24), 1, 2, 2, workers, shards_itself=itself)
        batches = first.batches(0, 0)
        used = [next(batches) for _ in range(stop)][-1].used
        state = first.state()
        rest = [batch.value[0].tolist() for batch in batches]
        said: list[str] = []
        again = stream(Telling(24), 1, 2, 2, workers, said, shards_itself=itself)
        again.load_state(state)
        assert [batch.value[0].tolist() for batch in again.batches(0, used)] == rest
        assert not said
        assert len(list(again.batches(1, 0))) == stop + len(rest), "the next epoch is a whole one"


def test_a_place_of_other_workers_is_refused() -> None:
    first = stream(Telling(24), 0, 1, 2, 2)
    next(first.batches(0, 0))
    with pytest.raises(UsageError, match=r"2 processes per rank.*here are 1; take --workers 2"):
        stream(Telling(24), 0, 1, 2).load_state(first.state())


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


class Texts(Dataset[str]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> str:
        return "a" * number


def lengths(samples: list[str]) -> dict[str, Any]:
    return {"lengths": torch.tensor([len(one) for one in samples])}


def test_the_collate_function_makes_the_batches() -> None:
    loader = DataLoader(Texts(), 3, collate_fn=lengths)
    for one in (source(train_data=Texts(), collate_fn=lengths), source(train_data=loader)):
        found = steps(one, 2, 3)
        assert all(set(batch.value) == {"lengths"} for step in found for batch in step)


def test_a_loader_whose_items_are_batches() -> None:
    loader = DataLoader(TensorDataset(torch.arange(12).reshape(6, 2)), batch_size=None, collate_fn=list)
    found = steps(source(train_data=loader), 2, EACH)
    assert [batch.value[0].tolist() for batch in found[0]] == [[0, 1], [2, 3]]
    assert len(found) == 3


class NoLength:
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"train_data": DataLoader(plain(4)), "collate_fn": list}, "a DataLoader and collate_fn"),
        ({"train_data": plain(4), "sampler": range(4), "batch_sampler": ByLength(4)}, "a sampler and a batch_sampler"),
        ({"train_data": Numbers(4), "sampler": range(4)}, "Numbers is a stream, of which no sampler can choose"),
        ({"train_data": plain(4), "sampler": NoLength()}, "NoLength has no length"),
        ({"train_data": NoLength()}, "NoLength has no length"),
        ({"train_data": plain(0), "drop_last": False}, "the data has no samples"),
        ({"train_data": plain(4), "batch_sampler": ByLength(1)}, "1 batches for 2 data-parallel ranks"),
    ],
)
def test_what_cannot_be_shared_is_refused(parts: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        order_of(source(**parts), 0, 2, Settings(batch_size=2))


def test_the_batch_size_of_a_loader_counts() -> None:
    given = source(train_data=DataLoader(plain(8), 4))
    assert with_batch_of(given, Settings(batch_size=32)).batch_size == 4
    both = Settings(batch_size=16, given={"batch_size": 16})
    with pytest.raises(UsageError, match=r"--batch-size 16 is given, and the DataLoader makes batches of 4"):
        with_batch_of(given, both)
    assert with_batch_of(source(train_data=plain(8)), both) is both
    with pytest.raises(UsageError, match="--micro-batches 3 does not divide"):
        with_batch_of(given, Settings(micro_batches=3))


def test_for_a_gpu_the_processes_stay_and_memory_is_pinned() -> None:
    plain_data, gpu, cpu = source(train_data=plain(8)), torch.device("cuda"), torch.device("cpu")
    with_workers, without = Settings(workers=2, prefetch=5), Settings()
    assert reading_of(plain_data, with_workers, gpu) == Reading(
        num_workers=2, prefetch_factor=5, pin_memory=True, persistent_workers=True
    )
    assert reading_of(plain_data, with_workers, cpu) == Reading(num_workers=2, prefetch_factor=5)
    assert reading_of(plain_data, without, gpu) == Reading()
    loader = DataLoader(plain(8), num_workers=1, prefetch_factor=3)
    assert reading_of(source(train_data=loader), with_workers, gpu) == Reading(num_workers=1, prefetch_factor=3)
    assert reading_of(source(train_data=DataLoader(plain(8))), with_workers, cpu).num_workers == 2


def test_a_sampler_with_replacement_is_the_users() -> None:
    sampler = RandomSampler(plain(8), replacement=True, num_samples=20)
    order = order_of(source(train_data=DataLoader(plain(8), 2, sampler=sampler)), 0, 2, Settings(batch_size=2))
    assert isinstance(order, SampleOrder)
    assert isinstance(order.sampler, DrawnSampler)
    assert order.length == 20
