"""What a task's data, loaders and settings say about reading, and that the data's own code is called as torch calls it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
)

from runner.base.errors import UsageError
from runner.training.data.feeds import order_of, reading_of, with_batch_of
from runner.training.data.loading import Reading
from runner.training.settings import Settings
from tests.unit.training.shares import EACH, feed, plain, random_states, source, steps

many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more than there are cores
KEYS: Any = ["a", "b", "c", "d", "e", "f"]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Batches:
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


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


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"train_data": DataLoader(plain(4)), "collate_fn": list}, "a DataLoader, which makes batches, and collate_fn"),
        ({"train_data": plain(4), "sampler": range(4), "batch_sampler": [[0]]}, "a sampler and a batch_sampler"),
        ({"train_data": Stream(), "sampler": range(4)}, "Stream is a stream, of which no sampler can choose"),
        (
            {"train_data": plain(4), "sampler": Batches()},
            "Batches has no length, which an epoch needs; give it __len__, or",
        ),
        ({"train_data": plain(4), "sampler": iter(range(4))}, "the sampler is a range_iterator, which gives one epoch"),
        ({"train_data": Batches(), "collate_fn": list}, "the task has a Batches, which makes batches, and collate_fn"),
        ({"train_data": 4}, "the data is a int, which cannot be read"),
        ({"train_data": plain(0), "drop_last": False}, "the data has no samples"),
        ({"train_data": plain(4), "batch_sampler": [[0]]}, "1 batches on 2 data-parallel ranks are less than one each"),
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


class Named(Dataset[Any]):
    """Its keys are letters, or tuples of a number and a size."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: Any) -> Any:
        return torch.full((key[1],), key[0]) if isinstance(key, tuple) else torch.tensor(ord(key))


def test_keys_are_the_users() -> None:
    letters = source(train_data=DataLoader(Named(), 2, sampler=KEYS))
    given = [chr(one) for step in steps(letters, 1, 2) for one in step[0].value.tolist()]
    assert given == KEYS
    assert order_of(letters, 0, 1, Settings(batch_size=2)).first(2) == ["a", "b"]
    keys: Any = [[(1, 2), (2, 2)], [(3, 4), (4, 4)]]
    scales = source(train_data=DataLoader(Named(), batch_sampler=keys))
    assert [tuple(batch.value.shape) for step in steps(scales, 2, EACH) for batch in step] == [(2, 2), (2, 4)]
    assert order_of(scales, 0, 1, Settings(batch_size=2)).first(1) == [(1, 2)]


class OwnIter(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.filterwarnings("ignore")  # of webdataset
def test_what_is_taken_apart_and_what_is_used_as_it_is() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from webdataset import WebLoader

    kinds = {
        "keys": [plain(4), [1, 2], DataLoader(plain(4)), StatefulDataLoader(plain(4))],
        "samples": [Stream()],
        "batches": [
            DataLoader(Stream()),
            DataLoader(plain(4), batch_size=None),
            StatefulDataLoader(Stream()),
            OwnIter(plain(4)),
            WebLoader(plain(4)),
            Batches(),
        ],
    }
    for kind, data in kinds.items():
        assert [source(train_data=one).kind for one in data] == [kind] * len(data)
    assert source(train_data=OwnIter(plain(4), sampler=DistributedSampler(plain(4), 2, 0))).shards_itself
    given = Settings(batch_size=4, given={"batch_size": 4})
    with pytest.raises(UsageError, match="--batch-size 4 is given, and the DataLoader makes the batches"):
        with_batch_of(source(train_data=DataLoader(Stream(), 4)), given)


@many_workers
def test_data_are_read_by_a_process_where_others_are_forked() -> None:
    """A file that data open at their first sample would else be shared by all processes that are forked later."""
    cpu, test = torch.device("cpu"), source(train_data=plain(8))
    forks, options = source(train_data=DataLoader(plain(8), num_workers=4)), Settings()
    assert reading_of(test, options, cpu, forks).num_workers == 1
    assert reading_of(test, options, cpu, source(train_data=plain(8))).num_workers == 0
    own = source(train_data=DataLoader(plain(8), num_workers=3))
    assert reading_of(own, options, cpu, forks).num_workers == 3


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
    batches = feed(source(train_data=data), 0, 1, 4).batches(0, 0)
    assert sorted(int(value) for one in batches for value in one.value[0]) == list(range(more, more + 8))


class Noisy(Dataset[Tensor]):
    """Random numbers of every kind, and which sample it was."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, random.random(), float(numpy.random.rand()), float(torch.rand(()))])


def noisy(workers: int, *, rank: int = 0, epoch: int = 0, skip: int = 0) -> list[Tensor]:
    batches = feed(source(train_data=Noisy()), rank, 2, 4, workers).batches(epoch, skip)
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
    batches, before = feed(source(train_data=Noisy()), 0, 1, 4).batches(0, 0), random_states()
    next(batches)
    assert random_states() == before
