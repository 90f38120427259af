"""The shares of a task's data that all ranks have in each step, for tests."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch.utils.data import TensorDataset

from runner.training.data.feed import Batch
from runner.training.data.feeds import order_of
from runner.training.data.loading import IndexedFeed, Reading
from runner.training.data.source import Source, source_of
from runner.training.settings import Settings

EACH = 4


def random_states() -> tuple[list[int], Any, str]:
    """The states of the random numbers of torch, Python and NumPy."""
    return torch.get_rng_state().tolist(), random.getstate(), str(numpy.random.get_state())


def plain(length: int) -> TensorDataset:
    """The numbers below a length."""
    return TensorDataset(torch.arange(length))


def source(**parts: Any) -> Source:
    """The source of a task with these parts, as far as data is concerned."""
    task: Any = SimpleNamespace(**parts)
    return source_of(task)


def feed(given: Source, rank: int, size: int, each: int, workers: int = 0) -> IndexedFeed:
    """A rank's batches."""
    order = order_of(given, rank, size, Settings(batch_size=each, seed=3))
    return IndexedFeed(given.data, order, Reading(num_workers=workers), given.collate)


def steps(given: Source, size: int, each: int, *, epoch: int = 0, used: int = 0) -> list[list[Batch]]:
    """The batches of all ranks in each step; all ranks have as many."""
    ranks = [list(feed(given, rank, size, each).batches(epoch, used)) for rank in range(size)]
    together = [list(batches) for batches in zip(*ranks, strict=True)]
    for batches in together:
        assert len({(batch.used, batch.all_samples, batch.is_last) for batch in batches}) == 1
        assert sum(batch.samples for batch in batches) == batches[0].all_samples
    assert [batches[0].is_last for batches in together] == [False] * (len(together) - 1) + [True] * bool(together)
    return together


def numbers(step: list[Batch]) -> list[int]:
    """The samples of a step that count, each named by its number."""
    return sorted(number for batch in step for number in batch.value[0].tolist()[: batch.samples])


def samples(given: Source, size: int, each: int, *, epoch: int = 0, used: int = 0) -> list[list[int]]:
    """The samples of all ranks in each step."""
    return list(map(numbers, steps(given, size, each, epoch=epoch, used=used)))
