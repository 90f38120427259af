"""A look at the data before a training: what it finds, and that it changes nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import Dataset

from runner.parallel.batch_forms import parts_of
from runner.training.data.loading import Reading
from runner.training.data.samples import Look, Sketch, are_near, look_at
from runner.training.data.source import Source
from tests.unit.training.shares import random_states


class Made(Dataset[Any]):
    """30 samples that a function makes of their numbers."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.read: list[int] = []

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return self.make(index)


def look(make: Callable[[int], Any], workers: int = 0) -> Look:
    return look_at(Source(data=Made(make)), [0, 1], Reading(num_workers=workers), sketch=True, check=parts_of)


def test_a_batch_may_be_anything_where_no_form_is_asked_for() -> None:
    found = look_at(Source(data=Made(lambda i: {"x": VALUES[i], "name": "a"})), [0, 1], Reading())
    assert found.problem is None
    assert found.batch["name"] == ["a", "a"]
    made = look_at(Source(data=Made(lambda i: "ab"), collate_fn=len), [0, 1], Reading())
    assert (made.problem, made.batch) == (None, 2)
    assert look_at(Source(data=Made(str)), [0, 1], Reading(), check=parts_of).problem is not None


def sketch(make: Callable[[int], Any], length: int = 30) -> Sketch:
    found = look(lambda i: make(i % length)).sketch
    assert found is not None
    return found


VALUES = torch.randn(32, 7, generator=torch.Generator().manual_seed(0))


def test_samples_are_told_from_others_whatever_they_are_made_of() -> None:
    kinds: list[Callable[[int], Any]] = [
        lambda i: (VALUES[i], i),
        lambda i: (VALUES[i].numpy(), float(i)),
        lambda i: {"x": VALUES[i] * 1j, "name": f"sample {i}"},
        lambda i: (VALUES[i].to(torch.bfloat16), [True] * i),
        numpy.int64,
    ]
    for make in kinds:
        assert are_near(sketch(make), sketch(make))
        assert not are_near(sketch(make), sketch(lambda i, make=make: make(i + 1)))  # type: ignore[misc]  # the loop's
        assert not are_near(sketch(make), sketch(make, 20)), "the first are the same, later ones are others"


def test_the_last_bits_may_differ_between_hosts() -> None:
    assert are_near(sketch(lambda i: VALUES[i]), sketch(lambda i: VALUES[i] * (1 + 1e-6)))
    assert not are_near(sketch(lambda i: VALUES[i]), sketch(lambda i: VALUES[i] * 1.01))
    assert not are_near(sketch(lambda i: VALUES[i]), sketch(lambda i: VALUES[i].flip(0)))


@pytest.mark.parametrize(
    "make",
    [
        lambda i: torch.randn(3),
        lambda i: random.random(),
        lambda i: numpy.random.rand(2),
        lambda i: torch.zeros(1) if i < 2 else object(),  # nothing is known of it
        lambda i: torch.zeros(1) if i < 2 else 1 // 0,  # the training will tell
        lambda i: time.sleep(0.15) or torch.zeros(1),  # type: ignore[func-returns-value]  # reading would take long
    ],
)
def test_nothing_is_compared_where_that_would_be_wrong_or_slow(make: Callable[[int], Any]) -> None:
    assert look(make).sketch is None


@pytest.mark.parametrize("workers", [0, 3])
def test_a_look_leaves_the_random_numbers_as_they_were(workers: int) -> None:
    before = random_states()
    data = Made(lambda i: (torch.rand(1), random.random(), numpy.random.rand(1)))
    look_at(Source(data=data), [0, 1], Reading(num_workers=workers), sketch=True)
    assert random_states() == before
    assert bool(data.read) == (workers == 0), "with --workers another process reads, which may open files of its own"


def test_the_first_batch_is_what_the_loader_makes() -> None:
    found = look(lambda i: (VALUES[i], i))
    assert found.batch is not None
    assert torch.equal(found.batch[0], VALUES[:2])
    assert found.batch[1].tolist() == [0, 1]
    assert found.problem is None


def test_a_form_that_cannot_be_trained_on_is_told_by_another_process_too() -> None:
    """tests/launched/test_inputs.py shows the other forms."""
    for workers in (0, 1):
        found = look(lambda i: (VALUES[i], object()), workers)
        assert "make no batch (TypeError: default_collate" in str(found.problem)
