"""Each rank's share of the data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from runner.base.errors import UsageError
from runner.training.data.evaluation_data import evaluation_loader
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.orders import SampleOrder, ShardSampler
from runner.training.data.source import check_length, length_of


def feed(data: Dataset[Any], sampler: ShardSampler, each: int, workers: int = 0) -> IndexedFeed:
    return IndexedFeed(data, SampleOrder(sampler, each), Reading(num_workers=workers), default_collate)


def steps(length: int, size: int, each: int, *, epoch: int = 0, skip: int = 0) -> list[set[int]]:
    """The samples that all ranks together use in each step."""
    data = TensorDataset(torch.arange(length))
    ranks = []
    for rank in range(size):
        batches = feed(data, ShardSampler(length, rank, size, seed=7), each).batches(epoch, skip)
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


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 9))
def test_evaluation_sees_every_sample_once(length: int, size: int, batch: int) -> None:
    data = TensorDataset(torch.arange(length))
    seen = [s for rank in range(size) for b in evaluation_loader(data, rank, size, batch) for s in b[0].tolist()]
    assert sorted(seen) == list(range(length))


def test_too_little_data_for_a_batch_is_told_with_the_arithmetic() -> None:
    with pytest.raises(
        UsageError, match=r"10 samples on 4 data-parallel ranks are 2 each, less than one batch of 5.*--batch-size 2"
    ):
        check_length(10, 4, 5)


def test_data_without_a_length_is_refused_in_one_line() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    class Counted(Stream):
        def __len__(self) -> int:
            return 3

    with pytest.raises(UsageError, match="Stream has no length"):
        length_of(Stream())
    with pytest.raises(UsageError, match=r"Counted is an IterableDataset.*__getitem__"):
        length_of(Counted())


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
    trained = feed(data, ShardSampler(8, 0, 1, seed=0), 4).loader
    for loader in (trained, evaluation_loader(data, 0, 1, 3)):
        assert sorted(int(value) for (batch,) in loader for value in batch) == list(range(more, more + 8))


class Noisy(Dataset[Tensor]):
    """Random numbers of every kind, and which sample it was."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, random.random(), float(numpy.random.rand()), float(torch.rand(()))])


def noisy(workers: int, *, rank: int = 0, epoch: int = 0, skip: int = 0) -> list[Tensor]:
    batches = feed(Noisy(), ShardSampler(24, rank, 2, seed=5), 4, workers).batches(epoch, skip)
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

    loader = iter(evaluation_loader(Noisy(), 0, 1, 4))
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    expected = drawn()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
    next(loader)
    assert drawn() == expected
