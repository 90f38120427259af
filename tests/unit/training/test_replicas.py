"""The digest by which replicas are compared, and whom the comparison names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from runner.base.errors import RunnerError
from runner.parallel.mesh import Degrees, Layout
from runner.parallel.same_start import digest_of
from runner.training import replicas
from runner.training.replicas import Replicas

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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([0, 0, 1], "weight differs on rank 2 (c) after step 7"),
        ([5, 0, 0, 0], "weight differs on rank 0 (a) after"),
        ([0, 1, 1, 0], "weight differs on ranks 0-3 (a, b, c, d) after"),
        ([0, 1, 2], "weight differs on ranks 0-2 (a, b, c) after"),
    ],
)
def test_who_differs_from_the_majority_is_named(changes: list[int], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``changes``: of each rank's digest of the first parameter. Where there is no majority all ranks are named."""
    found = _replicas(changes, monkeypatch)
    with pytest.raises(RunnerError) as raised:
        found.check(7)
    assert said in raised.value.message


def test_a_stages_copy_of_a_parameter_is_compared_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _replicas([0, 1], monkeypatch, copies={"weight": "embed.weight"})
    with pytest.raises(RunnerError) as raised:
        found.check(7)
    assert raised.value.message.startswith("--check-replicas: embed.weight differs on ranks 0-1")


def test_what_is_equal_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank has nobody to compare with, and that is no mistake: a job may have shrunk to it."""
    for ranks in (1, 3):
        _replicas([0] * ranks, monkeypatch).check(7)


def _replicas(changes: list[int], monkeypatch: pytest.MonkeyPatch, **of_trainer: Any) -> Replicas:
    """Those of as many ranks as there are changes."""

    def all_gather(everyone: list[Tensor], own: Tensor) -> None:
        for digests, change in zip(everyone, changes, strict=True):
            digests.copy_(own)
            digests[0] += change

    def bounds(numbers: list[int]) -> list[tuple[int, int]]:
        """Of digests; the names of what ranks have are alike."""
        others = [(one, one) for one in numbers[1:]]
        return [(numbers[0], numbers[0] + (max(changes) if len(numbers) > 1 else 0)), *others]

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(replicas, "bounds", bounds)
    layout = Layout(Degrees(replicate=len(changes)), tuple(range(len(changes))))
    job = SimpleNamespace(topology=SimpleNamespace(records=[SimpleNamespace(host=host) for host in "abcd"]))
    run: Any = SimpleNamespace(rank=0, size=len(changes), device="cpu", layout=layout, job=job)
    trainer: Any = SimpleNamespace(**{"model": nn.Linear(2, 1), "period": 1, "copies": {}} | of_trainer)
    return Replicas(run, trainer)
