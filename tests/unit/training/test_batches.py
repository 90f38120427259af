"""Each rank's share of data with keys: each sample once, on any number of ranks, from any place of the epoch on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from runner.base.errors import UsageError
from runner.training.data.feed import Batch
from runner.training.data.feeds import order_of, with_batch_of
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.source import Source, source_of_test
from runner.training.settings import Settings
from tests.unit.training.shares import EACH, feed, numbers, plain, samples, source, steps


@given(st.data())
def test_each_sample_comes_once_also_when_other_ranks_go_on(data: st.DataObject) -> None:
    """Stopped after some steps, and gone on with another number of ranks and another batch."""
    size, each, new_size, new_each = (data.draw(st.integers(1, 6)) for _ in range(4))
    length = data.draw(st.integers(max(size * each, new_size * new_each), 300))
    drop_last, epoch = data.draw(st.booleans()), data.draw(st.integers(0, 3))
    given = source(train_data=plain(length), drop_last=drop_last)
    whole = samples(given, size, each, epoch=epoch)
    assert whole == samples(given, 1, size * each, epoch=epoch), "they do not depend on the number of ranks"
    done = data.draw(st.integers(0, length // (size * each)))
    used, step = done * size * each, new_size * new_each
    rest = samples(given, new_size, new_each, epoch=epoch, used=used)
    assert rest == samples(given, 1, step, epoch=epoch, used=used)
    assert [len(one) for one in rest[:-1]] == [step] * (len(rest) - 1)
    found = list(itertools.chain(*whole[:done], *rest))
    assert len(found) == len(set(found)) == (length - (length - used) % step if drop_last else length)


def test_epochs_are_shuffled_differently() -> None:
    given = source(train_data=plain(100))
    assert samples(given, 1, 10, epoch=0) != samples(given, 1, 10, epoch=1)


def test_a_rank_without_samples_has_a_batch_that_does_not_count() -> None:
    *_, last = steps(source(train_data=plain(9), drop_last=False), 4, 2)
    assert [batch.samples for batch in last] == [1, 0, 0, 0]
    assert [len(batch.value[0]) for batch in last] == [1, 1, 1, 1]


def weighted(length: int) -> DataLoader[Any]:
    sampler = WeightedRandomSampler([1.0 + number % 3 for number in range(length)], length)
    return DataLoader(plain(length), EACH, sampler=sampler, drop_last=True)


@given(st.integers(16, 80), st.integers(0, 2))
def test_a_sampler_draws_the_same_on_any_number_of_ranks(length: int, epoch: int) -> None:
    whole = samples(source(train_data=weighted(length)), 2, EACH, epoch=epoch)
    torch.rand(5)  # other random numbers outside
    assert whole == samples(source(train_data=weighted(length)), 1, 8, epoch=epoch)
    assert whole[1:] == samples(source(train_data=weighted(length)), 2, EACH, epoch=epoch, used=8)


@given(st.integers(16, 80), st.sampled_from([1, 2, 4]))
def test_a_loader_that_shuffles_is_shuffled_as_the_data_itself(length: int, size: int) -> None:
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(plain(length), 4, shuffle=True, generator=generator, drop_last=True)
    assert samples(source(train_data=loader), size, 4) == samples(source(train_data=plain(length)), size, 4)


def test_a_loader_in_order_stays_in_order() -> None:
    assert samples(source(train_data=DataLoader(plain(10), 2)), 2, 2) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class ByLength:
    """A batch sampler: batches of one, two, three, one, … neighbours, in a random order."""

    def __init__(self, length: int) -> None:
        ends = [
            0,
            *itertools.takewhile(lambda end: end < length, itertools.accumulate(itertools.cycle([1, 2, 3]))),
            length,
        ]
        self.batches = [list(range(*pair)) for pair in itertools.pairwise(ends)]

    def __iter__(self) -> Iterator[list[int]]:
        return (self.batches[number] for number in torch.randperm(len(self.batches)).tolist())

    def __len__(self) -> int:
        return len(self.batches)


@given(st.integers(8, 80), st.sampled_from([1, 2, 3]), st.booleans())
def test_each_rank_takes_every_nth_batch_of_a_batch_sampler(length: int, size: int, drop_last: bool) -> None:
    given = source(train_data=plain(length), batch_sampler=ByLength(length), drop_last=drop_last)
    alone = steps(given, 1, EACH, epoch=1)
    whole = steps(given, size, EACH, epoch=1)
    assert len(whole) == (len(alone) // size if drop_last else -(-len(alone) // size))
    of_all = [numbers([batch]) for step in whole for batch in step if batch.samples]
    assert of_all == [numbers(step) for step in alone[: len(of_all)]]
    assert drop_last or sorted(itertools.chain(*of_all)) == list(range(length))
    assert samples(given, size, EACH, epoch=1, used=size) == list(map(numbers, whole[1:]))


def test_a_distributed_sampler_is_used_as_it_is() -> None:
    data = plain(16)
    loaders = [
        DataLoader(data, 2, sampler=DistributedSampler(data, num_replicas=2, rank=rank, seed=1)) for rank in range(2)
    ]
    own = feed(source(train_data=loaders[1]), 1, 2, 2)
    found = [batch.value[0].tolist() for batch in own.batches(3, 0)]
    loaders[1].sampler.set_epoch(3)  # type: ignore[attr-defined]  # it is a DistributedSampler
    assert found == [batch[0].tolist() for batch in loaders[1]]
    assert [batch.value[0].tolist() for batch in own.batches(3, 8)] == found[2:]
    with pytest.raises(
        UsageError, match=r"DistributedSampler is of rank 1 of 2, and this is data-parallel rank 1 of 4"
    ):
        order_of(source(train_data=loaders[1]), 1, 4, Settings(batch_size=2))


class Endless:
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(8))


def test_a_sampler_without_an_end_is_read_as_far_as_it_is_asked() -> None:
    loader: Any = DataLoader(plain(8), 3, sampler=Endless())  # type: ignore[arg-type]  # torch takes it
    order = order_of(source(train_data=loader), 1, 2, Settings(batch_size=3, max_steps=5))
    assert order.steps(0) is None
    places = list(itertools.islice(order.places(0, 6), 2))
    assert [one.batch.value for one in places] == [[7, 1, 3], [5, 7, 1]]
    assert [(one.batch.used, one.batch.is_last) for one in places] == [(12, False), (18, False)]


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
    first, again, other = (feed(source(train_data=plain(8), sampler=OwnOrder(start)), 0, 1, 2) for start in (0, 0, 3))
    next(first.batches(1, 0))
    for one in (again, other):
        one.resumed = first.state
    assert next(again.batches(1, 2)).value[0].tolist() == [2, 3]
    with pytest.raises(
        UsageError, match="--resume: the sampler draws other keys for epoch 2 than in the run that began it"
    ):
        other.batches(1, 2)
    assert next(other.batches(2, 0)).value[0].tolist() == [4, 5], "another epoch is begun anew"


def evaluated(data: Any, rank: int, size: int, batch: int = 1) -> list[Batch]:
    """What a rank evaluates."""
    task: Any = SimpleNamespace(train_data=None, test_data=data, collate_fn=None)
    given = source_of_test(task)
    order = order_of(given, rank, size, with_batch_of(given, Settings(batch_size=batch)))
    return list(IndexedFeed(given.data, order, Reading(), given.collate).batches(0, 0))


def seen_by_all(make: Callable[[int], Any], size: int, batch: int = 1) -> list[int]:
    """The samples that count, of all ranks, which have equally many steps."""
    ranks = [evaluated(make(rank), rank, size, batch) for rank in range(size)]
    assert len(set(map(len, ranks))) == 1
    return sorted(s for own in ranks for one in own for s in one.value[0].tolist()[: one.samples])


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 9))
def test_evaluation_sees_every_sample_once(length: int, size: int, batch: int) -> None:
    data = plain(length)
    assert seen_by_all(lambda rank: data, size, batch) == list(range(length))
    batches = evaluated(data, 0, 1, batch)
    assert [len(one.value[0]) for one in batches[:-1]] == [batch] * (len(batches) - 1)


@given(st.data())
def test_evaluation_takes_what_a_loader_gives(data: st.DataObject) -> None:
    """Its sampler, its batches, and what it drops; of a DistributedSampler no sample twice."""
    length, size = data.draw(st.integers(6, 40)), data.draw(st.integers(1, 4))
    whole = plain(length)
    draw = data.draw(st.sampled_from(["sampler", "shuffle", "batches", "items", "distributed"]))
    drop_last = data.draw(st.booleans()) and draw in ("sampler", "shuffle")
    kept = range(length // 2, length) if draw == "sampler" else range(length)

    def loader(rank: int) -> DataLoader[Any]:
        ways: dict[str, dict[str, Any]] = {
            "sampler": {"batch_size": 3, "sampler": SubsetRandomSampler(kept), "drop_last": drop_last},
            "shuffle": {"batch_size": 3, "shuffle": True, "drop_last": drop_last},
            "batches": {"batch_sampler": BatchSampler(SequentialSampler(whole), 3, drop_last=False)},
            "items": {"batch_size": 3},
            "distributed": {"batch_size": 2, "sampler": DistributedSampler(whole, size, rank, shuffle=False)},
        }
        return DataLoader(whole, **ways[draw])

    seen = seen_by_all(loader, size)
    assert len(seen) == len(set(seen)) == (len(kept) // 3 * 3 if drop_last else len(kept))
    assert set(seen) <= set(kept)


def test_too_little_data_for_a_batch_is_told_with_the_arithmetic() -> None:
    with pytest.raises(
        UsageError, match=r"10 samples on 4 data-parallel ranks are 2 each, less than one batch of 5.*--batch-size 2"
    ):
        order_of(Source(data=plain(10)), 0, 4, Settings(batch_size=5))
