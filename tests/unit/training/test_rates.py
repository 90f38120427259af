"""The learning rate's factor in each step."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

from runner.base.errors import UsageError
from runner.parallel.task import Task
from runner.training.loop import rate_of


def task(**fields: Any) -> Task:
    return Task(model=nn.Linear(1, 1), loss=nn.MSELoss(), optimizer=SGD, train_data=[], **fields)  # type: ignore[arg-type]


def down(step: int, total: int) -> float:
    return 1 - step / total


def to(end: float, step: int, total: int, power: int = 1) -> float:
    return end + (1 - end) * (1 - step / total) ** power


@pytest.mark.parametrize(
    ("fields", "factors"),
    [
        ({"schedule": lambda step: 1 / (step + 1)}, [1, 1 / 2, 1 / 3, 1 / 4]),
        ({"schedule": down}, [1, 3 / 4, 2 / 4, 1 / 4]),
        ({"schedule": lambda step, scale=2: scale * step}, [0, 2, 4, 6]),
        ({"schedule": functools.partial(to, 0.5)}, [1, 7 / 8, 6 / 8, 5 / 8]),
        ({"warmup": 2}, [1 / 2, 1, 1, 1]),
        ({"schedule": down, "warmup": 3}, [1 / 3, 2 / 3 * 3 / 4, 2 / 4, 1 / 4]),
    ],
)
def test_schedule_and_warm_up(fields: dict[str, Any], factors: list[float]) -> None:
    rate = rate_of(task(**fields), total=4)
    assert rate is not None
    assert [rate(step) for step in range(4)] == pytest.approx(factors)


def test_a_total_that_is_not_known_is_refused_only_where_it_is_needed() -> None:
    assert rate_of(task(), total=None) is None
    assert rate_of(task(schedule=lambda step: 1.0), total=None) is not None
    with pytest.raises(UsageError, match="takes the total of steps"):
        rate_of(task(schedule=down), total=None)


@pytest.mark.parametrize("warmup", [-1, 2.5])
def test_a_warm_up_is_a_number_of_steps(warmup: Any) -> None:
    with pytest.raises(UsageError, match="warmup is"):
        task(warmup=warmup)
