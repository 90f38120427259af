"""What is sent so that all ranks begin with rank 0's model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from runner.base.errors import UsageError
from runner.parallel import same_start as alike

CPU = torch.device("cpu")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def sent(own: nn.Module, others: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What a rank sends or gets that has a model, where the other rank has another."""
    found: list[Tensor] = []
    digests: list[list[Any]] = []

    def bounds(numbers: list[Any]) -> list[tuple[Any, Any]]:
        digests.append(numbers)
        before = digests[-3] if len(digests) > 2 else numbers  # of the same place in the other's exchange
        return [(min(pair), max(pair)) for pair in zip(before, numbers, strict=True)]

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(alike, "bounds", bounds)
    monkeypatch.setattr(alike, "broadcast", lambda tensors, device: found.extend(tensors))
    alike.begin_alike(others, CPU)
    alike.begin_alike(own, CPU)
    return found


def test_models_that_are_equal_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(net(), net(), monkeypatch) == []


def test_only_what_differs_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    own = net()
    weight = own.get_parameter("2.weight")
    mean = own.get_buffer("1.running_mean")
    with torch.no_grad():
        weight[0, 1] += 1
        mean[3] = float("nan")
    assert [id(tensor) for tensor in sent(own, net(), monkeypatch)] == [id(weight), id(mean)]


def test_a_sparse_buffer_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    model.register_buffer("edges", torch.eye(3).to_sparse())
    with pytest.raises(UsageError, match=r"edges is sparse \(sparse_coo\), and ranks cannot exchange it") as caught:
        sent(model, model, monkeypatch)
    assert caught.value.on_all_ranks
