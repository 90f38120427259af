"""The mean of 64-bit integers is Python's, whatever their sum is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runner.backends.mpi4py.averages import mean, split


@pytest.mark.parametrize(
    ("dtype", "least", "largest"), [(torch.int64, -(2**63), 2**63 - 1), (torch.uint64, 0, 2**64 - 1)], ids=str
)
@given(data=st.data())
def test_the_mean_is_exact(dtype: torch.dtype, least: int, largest: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(least, largest), min_size=1, max_size=9))
    size = len(numbers)
    parts = split(torch.tensor(numbers, dtype=dtype), size)
    sums = parts.view(torch.int64).sum(0).view(dtype)
    total = sum(numbers)
    assert mean(sums, size).item() == abs(total) // size * (1 if total > 0 else -1)
