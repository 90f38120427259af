"""Data of every kind is shared alike: each sample once, on any number of ranks, from any place of the epoch on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
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
    get_worker_info,
)

from runner.base.errors import UsageError
from runner.training.data.feed import Batch
from runner.training.data.feeds import order_of, reading_of, with_batch_of
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.orders import EpochOrder
from runner.training.data.source import Source, source_of
from runner.training.data.streams import BatchStream, SampleStream
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
        agree = (lambda has, samples: (has, size * samples)) if given.is_item else None
        return IndexedFeed(given.data, order, Reading(), given.collate, agree=agree)

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
) -> SampleStream:
    settings = {"drop_last": True, "shards_itself": False} | more
    agree = lambda has, samples: (has, 0)  # noqa: E731  # of ranks that have equally many
    say = (said if said is not None else []).append
    reading = Reading(num_workers=workers)
    return SampleStream(
        data, rank, size, 3, agree, say, batch_size=each, collate=default_collate, reading=reading, **settings
    )


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
        ({"train_data": DataLoader(plain(4)), "collate_fn": list}, "a DataLoader, which makes batches, and collate_fn"),
        ({"train_data": plain(4), "sampler": range(4), "batch_sampler": ByLength(4)}, "a sampler and a batch_sampler"),
        ({"train_data": Numbers(4), "sampler": range(4)}, "Numbers is a stream, of which no sampler can choose"),
        (
            {"train_data": plain(4), "sampler": NoLength()},
            "NoLength has no length, which an epoch needs; give it __len__, or",
        ),
        ({"train_data": plain(4), "sampler": iter(range(4))}, "the sampler is a range_iterator, which gives one epoch"),
        (
            {"train_data": NoLength(), "collate_fn": list},
            "the task has a NoLength, which makes batches, and collate_fn",
        ),
        ({"train_data": 4}, "the data is a int, which cannot be read"),
        ({"train_data": plain(0), "drop_last": False}, "the data has no samples"),
        (
            {"train_data": plain(4), "batch_sampler": ByLength(1)},
            "1 batches on 2 data-parallel ranks are less than one each",
        ),
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
    found = steps(source(train_data=DataLoader(plain(8), 2, sampler=sampler)), 2, 2)
    assert [batch.all_samples for batch, _ in found] == [4] * 5


class Endless(NoLength):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(8))


def test_a_sampler_without_an_end_is_read_as_far_as_it_is_asked() -> None:
    loader: Any = DataLoader(plain(8), 3, sampler=Endless())  # type: ignore[arg-type]  # torch takes it
    order = order_of(source(train_data=loader), 1, 2, Settings(batch_size=3, max_steps=5))
    assert order.steps(0) is None
    places = list(itertools.islice(order.places(0, 6), 2))
    assert [one.batch.value for one in places] == [[7, 1, 3], [5, 7, 1]]
    assert [(one.batch.used, one.batch.is_last) for one in places] == [(12, False), (18, False)]


class Named(Dataset[Any]):
    """Its keys are letters, or tuples of a number and a size."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: Any) -> Any:
        return torch.full((key[1],), key[0]) if isinstance(key, tuple) else torch.tensor(ord(key))


def test_keys_are_the_users() -> None:
    letters = source(train_data=DataLoader(Named(), 2, sampler=list("abcdef")))  # type: ignore[arg-type]  # torch takes it
    given = [chr(one) for step in steps(letters, 1, 2) for one in step[0].value.tolist()]
    assert given == list("abcdef")
    assert order_of(letters, 0, 1, Settings(batch_size=2)).first(2) == ["a", "b"]
    keys: Any = [[(1, 2), (2, 2)], [(3, 4), (4, 4)]]
    scales = source(train_data=DataLoader(Named(), batch_sampler=keys))
    assert [tuple(batch.value.shape) for step in steps(scales, 2, EACH) for batch in step] == [(2, 2), (2, 4)]
    assert order_of(scales, 0, 1, Settings(batch_size=2)).first(1) == [(1, 2)]


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
    agree = lambda has, samples: (has, samples)  # noqa: E731
    say = (said if said is not None else []).append
    return BatchStream(loader, rank, size, 3, agree, say, alike=lambda batch: True, **settings)


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


class OwnIter(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.filterwarnings("ignore")  # of webdataset
def test_what_is_taken_apart_and_what_is_used_as_it_is() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from webdataset import WebLoader

    kinds = {
        "keys": [plain(4), [1, 2], DataLoader(plain(4)), StatefulDataLoader(plain(4))],
        "samples": [Numbers(4)],
        "batches": [
            DataLoader(Numbers(4)),
            StatefulDataLoader(Numbers(4)),
            OwnIter(plain(4)),
            WebLoader(plain(4)),
            Loader(),
        ],
    }
    for kind, data in kinds.items():
        assert [source(train_data=one).kind for one in data] == [kind] * len(data)
    assert source(train_data=OwnIter(plain(4), sampler=DistributedSampler(plain(4), 2, 0))).shards_itself
    given = Settings(batch_size=4, given={"batch_size": 4})
    with pytest.raises(UsageError, match="--batch-size 4 is given, and the DataLoader makes the batches"):
        with_batch_of(source(train_data=DataLoader(Numbers(4), 4)), given)


@many_workers
def test_data_are_read_by_a_process_where_others_are_forked() -> None:
    """A file that data open at their first sample would else be shared by all processes that are forked later."""
    cpu, test = torch.device("cpu"), source(train_data=plain(8))
    forks, options = source(train_data=DataLoader(plain(8), num_workers=4)), Settings()
    assert reading_of(test, options, cpu, forks).num_workers == 1
    assert reading_of(test, options, cpu, source(train_data=plain(8))).num_workers == 0
    own = source(train_data=DataLoader(plain(8), num_workers=3))
    assert reading_of(own, options, cpu, forks).num_workers == 3


class OwnOrder:
    """A sampler whose order another process cannot draw again."""

    def __init__(self, start: int) -> None:
        self.orders = itertools.count(start)

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        start = next(self.orders)
        return iter([(start + number) % 8 for number in range(8)])


def test_an_epoch_goes_on_by_the_order_that_it_began_with() -> None:
    def feed(start: int) -> IndexedFeed:
        given = source(train_data=plain(8), sampler=OwnOrder(start))
        return IndexedFeed(plain(8), order_of(given, 0, 1, Settings(batch_size=2)), Reading(), default_collate)

    first = feed(0)
    next(first.batches(1, 0))
    again, other = feed(0), feed(3)
    for one in (again, other):
        one.resumed = first.state
    assert next(again.batches(1, 2)).value[0].tolist() == [2, 3]
    with pytest.raises(
        UsageError, match="--resume: the sampler draws other keys for epoch 2 than in the run that began it"
    ):
        other.batches(1, 2)
    assert next(other.batches(2, 0)).value[0].tolist() == [4, 5], "another epoch is begun anew"
