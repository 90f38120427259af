"""Batches, checkpoints and metrics files, without a process group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from runner.errors import UsageError
from runner.training import checkpoint
from runner.training.batches import ShardSampler, evaluation_loader, train_loader
from runner.training.checkpoint import Position
from runner.training.metrics import MetricsFile, StepRecord


def steps(length: int, size: int, each: int, *, epoch: int = 0, skip: int = 0) -> list[set[int]]:
    """The samples that all ranks together use in each step."""
    data = TensorDataset(torch.arange(length))
    ranks = []
    for rank in range(size):
        sampler = ShardSampler(length, rank, size, seed=7)
        loader = train_loader(data, sampler, each, workers=0)
        sampler.epoch, sampler.skip = epoch, skip
        ranks.append([batch[0].tolist() for batch in loader])
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


def test_an_epoch_can_be_taken_up_in_the_middle() -> None:
    assert steps(103, 2, 5, skip=30) == steps(103, 2, 5)[3:]
    assert steps(103, 4, 5, skip=40) == steps(103, 1, 20)[2:]


def test_epochs_are_shuffled_differently() -> None:
    assert steps(100, 1, 10, epoch=0) != steps(100, 1, 10, epoch=1)


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 9))
def test_evaluation_sees_every_sample_once(length: int, size: int, batch: int) -> None:
    data = TensorDataset(torch.arange(length))
    seen = [s for rank in range(size) for b in evaluation_loader(data, rank, size, batch) for s in b[0].tolist()]
    assert sorted(seen) == list(range(length))


def test_too_little_data_for_a_batch_is_told_with_the_arithmetic() -> None:
    with pytest.raises(UsageError, match=r"10 samples on 4 ranks are 2 each, less than one batch of 5.*--batch-size 2"):
        train_loader(TensorDataset(torch.arange(10)), ShardSampler(10, 0, 4, 0), 5, 0)


def saved(path: Path, model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoint.save(path, "workloads.test", model, optimizer, Position(2, 30, 5))


def test_a_checkpoint_brings_everything_back(tmp_path: Path) -> None:
    model, path = nn.Linear(3, 2), tmp_path / "c.pt"
    saved(path, model)
    other = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(other.parameters())
    position = checkpoint.restore(checkpoint.read(path, "workloads.test", other), other, optimizer)
    assert position == Position(2, 30, 5)
    assert torch.equal(other.weight, model.weight)
    assert optimizer.state_dict()["state"][0]["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (nn.Linear(3, 5), r"weight is \[2, 3\] there and \[5, 3\] here"),
        (nn.Linear(3, 2, bias=False), "it has bias, which the model has not"),
        (nn.Sequential(nn.Linear(3, 2)), r"it has no 0\.weight"),
    ],
)
def test_a_checkpoint_of_another_model_is_told_with_the_difference(
    tmp_path: Path, model: nn.Module, difference: str
) -> None:
    saved(tmp_path / "c.pt", nn.Linear(3, 2))
    with pytest.raises(UsageError, match=rf"another model \(workloads.test, this is workloads.other\): {difference}"):
        checkpoint.read(tmp_path / "c.pt", "workloads.other", model)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip"])
def test_a_broken_checkpoint_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(UsageError, match="is not a readable checkpoint"):
        checkpoint.read(tmp_path / "c.pt", "w", nn.Linear(1, 1))


def test_somebody_elses_checkpoint_is_told(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "c.pt")
    with pytest.raises(UsageError, match="is not a checkpoint of this runner"):
        checkpoint.read(tmp_path / "c.pt", "w", nn.Linear(1, 1))


def record(step: int) -> StepRecord:
    return StepRecord(step=step, epoch=0, loss=1.0, lr=0.1, samples_per_s=10.0)


def test_resumed_metrics_go_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with ExitStack() as stack:
        MetricsFile(path, stack, None).write([record(step) for step in range(1, 6)])
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # killed while writing
    with ExitStack() as stack:
        MetricsFile(path, stack, 3).write([record(4)])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_the_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    from workloads.data.images import _read_digits

    pixels, classes = _read_digits()
    bunch = load_digits()
    assert (pixels == bunch.data).all()
    assert (classes == bunch.target).all()


def test_data_without_a_length_is_refused_in_one_line() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(UsageError, match="Stream has no length"):
        ShardSampler.over(Stream(), rank=0, size=2, seed=0)
