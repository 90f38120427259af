"""Each rank's share of the data."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from runner.base.errors import UsageError
from runner.training.data.feed import Batch
from runner.training.data.feeds import order_of, with_batch_of
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.orders import ShuffledOrder
from runner.training.data.source import Source, length_of, source_of_test
from runner.training.settings import Settings


def feed(
    data: Any, rank: int, size: int, each: int, workers: int = 0, *, seed: int = 7, collate: Any = default_collate
) -> IndexedFeed:
    order = ShuffledOrder(len(data), rank, size, each, seed, drop_last=True)
    return IndexedFeed(data, order, Reading(num_workers=workers), collate)


def steps(length: int, size: int, each: int, *, epoch: int = 0, skip: int = 0) -> list[set[int]]:
    """The samples that all ranks together use in each step."""
    data = TensorDataset(torch.arange(length))
    ranks = []
    for rank in range(size):
        batches = feed(data, rank, size, each).batches(epoch, skip)
        ranks.append([batch.value[0].tolist() for batch in batches])
    assert len({len(batches) for batches in ranks}) == 1, "every rank takes the same number of steps"
    return [{sample for batch in batches for sample in batch} for batches in zip(*ranks, strict=True)]


@given(st.integers(4, 300), st.integers(1, 8), st.integers(0, 3))
def test_global_batches_do_not_depend_on_the_number_of_ranks(length: int, each: int, epoch: int) -> None:
    whole = 4 * each
    if length < whole + 4:
        length += whole + 4
    on_one = steps(length, 1, whole, epoch=epoch)
    assert all(len(batch) == whole for batch in on_one)
    assert on_one == steps(length, 2, whole // 2, epoch=epoch) == steps(length, 4, each, epoch=epoch)


def test_an_uneven_last_batch_is_not_trained_on() -> None:
    assert [len(batch) for batch in steps(103, 2, 5)] == [10] * 10
    assert len(steps(100, 3, 8)) == 4  # 33 samples each


def test_an_epoch_can_be_taken_up_in_the_middle() -> None:
    assert steps(103, 2, 5, skip=30) == steps(103, 2, 5)[3:]
    assert steps(103, 4, 5, skip=40) == steps(103, 1, 20)[2:]


@given(st.data())
def test_what_is_left_of_an_epoch_is_shared_equally_by_any_other_ranks(data: st.DataObject) -> None:
    """Stopped after some steps, and gone on with another number of ranks and another batch."""
    size, each = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    new_size, new_each = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    length = data.draw(st.integers(max(size * each, new_size * new_each), 300))
    done = data.draw(st.integers(0, length // (size * each)))
    skip, whole = done * size * each, new_size * new_each
    rest = steps(length, new_size, new_each, skip=skip)  # which sees that all ranks take equally many
    assert len(rest) == (length - skip) // whole
    assert all(len(batch) == whole for batch in rest)
    used = [sample for batch in [*steps(length, size, each)[:done], *rest] for sample in batch]
    assert len(used) == len(set(used)), "no sample comes twice"
    assert rest == steps(length, 1, whole, skip=skip), "and they do not depend on the number of ranks"


def test_epochs_are_shuffled_differently() -> None:
    assert steps(100, 1, 10, epoch=0) != steps(100, 1, 10, epoch=1)


def evaluated(data: Any, rank: int, size: int, batch: int = 1) -> list[Batch]:
    """What a rank evaluates."""
    options, task = Settings(batch_size=batch), SimpleNamespace(train_data=None, test_data=data, collate_fn=None)
    source = source_of_test(task)  # type: ignore[arg-type]  # as far as data is concerned
    own = with_batch_of(source, options)
    order = order_of(source, rank, size, own)
    feed = IndexedFeed(source.data, order, Reading(), source.collate)
    return list(feed.batches(0, 0))


def seen_by_all(make: Callable[[int], Any], size: int, batch: int = 1) -> list[int]:
    """The samples that count, of all ranks, which have equally many steps."""
    ranks = [evaluated(make(rank), rank, size, batch) for rank in range(size)]
    assert len(set(map(len, ranks))) == 1
    return sorted(s for own in ranks for one in own for s in one.value[0].tolist()[: one.samples])


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 9))
def test_evaluation_sees_every_sample_once(length: int, size: int, batch: int) -> None:
    data = TensorDataset(torch.arange(length))
    assert seen_by_all(lambda rank: data, size, batch) == list(range(length))
    batches = evaluated(data, 0, 1, batch)
    assert [len(one.value[0]) for one in batches[:-1]] == [batch] * (len(batches) - 1)


@given(st.data())
def test_evaluation_takes_what_a_loader_gives(data: st.DataObject) -> None:
    """Its sampler, its batches, and what it drops; of a DistributedSampler no sample twice."""
    length, size = data.draw(st.integers(6, 40)), data.draw(st.integers(1, 4))
    whole = TensorDataset(torch.arange(length))
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


def test_a_test_loader_that_gives_nothing_is_refused() -> None:
    few = DataLoader(TensorDataset(torch.arange(5)), 8, drop_last=True)
    with pytest.raises(UsageError, match="5 samples on 1 data-parallel ranks are 5 each, less than one batch of 8"):
        evaluated(few, 0, 1)


def test_too_little_data_for_a_batch_is_told_with_the_arithmetic() -> None:
    with pytest.raises(
        UsageError, match=r"10 samples on 4 data-parallel ranks are 2 each, less than one batch of 5.*--batch-size 2"
    ):
        order_of(Source(data=TensorDataset(torch.arange(10))), 0, 4, Settings(batch_size=5))


def test_data_without_a_length_is_refused_in_one_line() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(UsageError, match="Stream has no length"):
        length_of(Stream())


class Asked(TensorDataset):
    """Its own code is to be called for each sample."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        assert isinstance(index, int)
        (value,) = super().__getitem__(index)
        return (value + 1000,)


class AskedForAll(Asked):
    """torch's protocol for a whole batch."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        return [(self.tensors[0][index] + 2000,) for index in indices]


@pytest.mark.parametrize(
    ("data", "more"),
    [
        (TensorDataset(torch.arange(8)), 0),
        (Asked(torch.arange(8)), 1000),
        (AskedForAll(torch.arange(8)), 2000),
        (Subset(Asked(torch.arange(16)), range(8)), 1000),
        (Subset(AskedForAll(torch.arange(16)), range(8)), 2000),
        (ConcatDataset([Asked(torch.arange(5)), Asked(torch.arange(5, 8))]), 1000),
    ],
)
def test_a_data_sets_own_code_is_called_as_torch_calls_it(data: Dataset[Any], more: int) -> None:
    for batches in (feed(data, 0, 1, 4).batches(0, 0), evaluated(data, 0, 1, 3)):
        assert sorted(int(value) for one in batches for value in one.value[0]) == list(range(more, more + 8))


class Noisy(Dataset[Tensor]):
    """Random numbers of every kind, and which sample it was."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, random.random(), float(numpy.random.rand()), float(torch.rand(()))])


def noisy(workers: int, *, rank: int = 0, epoch: int = 0, skip: int = 0) -> list[Tensor]:
    batches = feed(Noisy(), rank, 2, 4, workers, seed=5).batches(epoch, skip)
    return [batch.value for batch in batches]


def test_augmentation_depends_on_seed_place_and_rank_and_on_nothing_else() -> None:
    whole = noisy(0)
    random.seed(1)
    torch.rand(3)
    assert all(map(torch.equal, noisy(2), whole)), "by two processes"
    assert all(map(torch.equal, noisy(2, skip=8), whole[1:])), "after a resume"
    others = [*noisy(0, rank=1), *noisy(0, epoch=1)]
    numbers = {number for batch in [*whole, *others] for number in batch[:, 1:].reshape(-1).tolist()}
    assert len(numbers) == 3 * 3 * 12, "no two samples have the same"


def test_reading_a_batch_leaves_the_random_numbers_outside_as_they_were() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    batches = feed(Noisy(), 0, 1, 4).batches(0, 0)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    expected = drawn()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    next(batches)
    assert drawn() == expected
