"""The shuffled order of an epoch."""

from __future__ import annotations

import tracemalloc

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.training.data import orders
from runner.training.data.orders import Permutation, ShuffledOrder

KEYS = 2000


@pytest.fixture(params=[0, orders._LISTED], ids=["computed", "listed"], autouse=True)
def listed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Both ways of making an order, whatever its length."""
    monkeypatch.setattr(orders, "_LISTED", request.param)
    most: int = request.param
    return most


def order(length: int, key: str = "a key") -> list[int]:
    found: list[int] = Permutation(length, key).at(numpy.arange(length)).tolist()
    return found


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 65, 1000, 4097, 70_000])
def test_every_number_comes_once(length: int) -> None:
    assert sorted(order(length)) == list(range(length))


@pytest.mark.parametrize("length", [10, 37, 64])
def test_each_number_comes_to_each_place_equally_often(length: int) -> None:
    counts = numpy.zeros((length, length))
    for key in range(KEYS):
        counts[numpy.arange(length), order(length, str(key))] += 1
    assert _chi_square(counts, KEYS / length) < 1.25


def test_what_follows_a_number_does_not_depend_on_it() -> None:
    """No neighbours stay together: all differences between one number and the next are as frequent as with random orders."""
    length = 37
    counts = numpy.zeros(length)
    for key in range(KEYS):
        numbers = numpy.array(order(length, str(key)))
        numpy.add.at(counts, (numbers[1:] - numbers[:-1]) % length, 1)
    assert counts[0] == 0
    assert _chi_square(counts[1:], KEYS) < 1.8  # of 36 numbers: 1 ± 0.24 for random orders


def test_a_long_order_looks_random() -> None:
    """Of 10⁶ numbers: halves, quarters and neighbours are mixed."""
    length = 1_000_003
    numbers = Permutation(length, "long").at(numpy.arange(length)).astype(float) / length
    assert abs(numpy.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.005
    assert abs(numpy.corrcoef(numbers, numpy.arange(length))[0, 1]) < 0.005
    for part in numpy.array_split(numbers, 16):
        counts, _ = numpy.histogram(part, bins=16, range=(0, 1))
        assert _chi_square(counts, len(part) / 16) < 3


@given(st.integers(1, 5000), st.data())
def test_any_part_can_be_read_by_itself(length: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length))
    assert Permutation(length, "p").at(numpy.arange(start, length)).tolist() == order(length, "p")[start:]


def test_a_hundred_million_samples_take_no_memory() -> None:
    order = ShuffledOrder(100_000_000, rank=1, size=2, batch_size=4, seed=0, drop_last=True)
    tracemalloc.start()
    first = next(order.places(0, 60_000_000)).batch.value[0]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 <= first < 100_000_000
    assert most < 10_000_000


def test_the_order_is_the_same_in_every_version(listed: int) -> None:
    """A resumed training continues in the order in which it began, whatever is installed by then."""
    assert Permutation(1 << 40, "seed 0 epoch 0").at(numpy.arange(3)).tolist() == [
        766449870179,
        713056895630,
        609949330094,
    ]
    if listed:
        assert order(10, "seed 0 epoch 0") == [0, 1, 9, 2, 7, 5, 3, 8, 4, 6]


def _chi_square(counts: numpy.ndarray, expected: float) -> float:
    """Per count: 1 for random ones, with a deviation of √(2 / how many)."""
    return float(((counts - expected) ** 2 / expected).mean())
