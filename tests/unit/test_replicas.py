"""The digest by which replicas are compared."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runner.training.replicas import digest_of

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64)


@pytest.mark.parametrize("dtype", TYPES)
def test_equal_tensors_have_equal_digests(dtype: torch.dtype) -> None:
    tensor = (torch.arange(24) // 3 % 5 - 2).reshape(4, 6).to(dtype)
    assert digest_of(tensor) == digest_of(tensor.clone())
    assert digest_of(tensor.t()) != digest_of(tensor)
    assert digest_of(tensor[:0]) == 0


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 31))
def test_a_flipped_bit_and_exchanged_elements_change_it(one: int, other: int, bit: int) -> None:
    tensor = torch.arange(100, dtype=torch.float32).cos()
    flipped, exchanged = tensor.clone(), tensor.clone()
    flipped.view(torch.int32)[one] ^= 1 << bit if bit < 31 else -(1 << 31)
    exchanged[one], exchanged[other] = tensor[other], tensor[one]
    assert digest_of(flipped) != digest_of(tensor)
    assert (digest_of(exchanged) != digest_of(tensor)) == (one != other)
