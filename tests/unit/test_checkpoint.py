"""Checkpoints, and going on from them, without a process group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from runner.errors import UsageError
from runner.training import checkpoint, resume
from runner.training.checkpoint import Position

SETTINGS = {
    "workload": "workloads.test",
    "ranks": 2,
    "seed": 0,
    "samples": 100,
    "optimizer": "Adam",
    "groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}],
}


def saved(path: Path, model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoint.save(path, SETTINGS, model, optimizer, Position(2, 30, 5))


def test_a_checkpoint_brings_everything_back(tmp_path: Path) -> None:
    model, path = nn.Linear(3, 2), tmp_path / "c.pt"
    saved(path, model)
    other = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(other.parameters())
    content = checkpoint.read(path, "workloads.test", other)
    assert resume.restore(path, content, SETTINGS, other, optimizer) == (Position(2, 30, 5), [])
    assert torch.equal(other.weight, model.weight)
    assert optimizer.state_dict()["state"][0]["step"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


def test_one_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Without the settings."""
    model, path = nn.Linear(3, 2), tmp_path / "c.pt"
    saved(path, model)
    content = torch.load(path, weights_only=True)
    del content["settings"]
    torch.save(content, path)
    content = checkpoint.read(path, "workloads.test", model)
    adam, sgd = torch.optim.Adam(model.parameters()), torch.optim.SGD(model.parameters())
    assert resume.restore(path, content, SETTINGS, model, adam) == (Position(2, 30, 5), [])
    with pytest.raises(UsageError, match="was made by another optimizer, and this is SGD"):
        resume.restore(path, content, SETTINGS, model, sgd)


def test_hyperparameters_that_have_changed_are_obeyed_and_schedules_stay(tmp_path: Path) -> None:
    def made(lr: float, momentum: float) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
        model = nn.Linear(3, 2)
        groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 10 * lr}]
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum)
        plain = [{"lr": group["lr"], "momentum": momentum} for group in optimizer.param_groups]
        return model, optimizer, SETTINGS | {"optimizer": "SGD", "groups": plain}

    model, optimizer, settings = made(0.1, 0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step()
    schedule.step()
    checkpoint.save(tmp_path / "c.pt", settings, model, optimizer, Position(1, 3, 0))
    model, optimizer, settings = made(0.4, 0.8)
    content = checkpoint.read(tmp_path / "c.pt", "w", model)
    _, changes = resume.restore(tmp_path / "c.pt", content, settings | {"ranks": 4}, model, optimizer)
    assert changes[0] == "ranks 2 → 4"
    assert set(changes[1:]) == {"lr 0.1 → 0.4", "lr 1 → 4", "momentum 0.9 → 0.8"}
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 2.0]
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.4, 4.0]
    assert {group["momentum"] for group in optimizer.param_groups} == {0.8}


def test_the_optimizer_has_to_be_the_same(tmp_path: Path) -> None:
    model, path = nn.Linear(3, 2), tmp_path / "c.pt"
    saved(path, model)
    content = checkpoint.read(path, "w", model)
    with pytest.raises(UsageError, match="was made by Adam, and this is SGD"):
        resume.restore(path, content, SETTINGS, model, torch.optim.SGD(model.parameters()))
    with pytest.raises(UsageError, match=r"groups of \[2\] parameters in the optimizer, and here they have \[1\]"):
        resume.restore(path, content, SETTINGS, model, torch.optim.Adam([model.weight]))


@pytest.mark.parametrize("change", [{"seed": 1}, {"samples": 99}])
def test_the_rest_of_an_epoch_needs_the_same_order(tmp_path: Path, change: dict[str, int]) -> None:
    model, path = nn.Linear(3, 2), tmp_path / "c.pt"
    saved(path, model)
    content, optimizer = checkpoint.read(path, "w", model), torch.optim.Adam(model.parameters())
    with pytest.raises(UsageError, match="the middle of an epoch over 100 samples, shuffled by seed 0; here are"):
        resume.restore(path, content, SETTINGS | change, model, optimizer)
    content["position"]["samples"] = 0
    _, changes = resume.restore(path, content, SETTINGS | change, model, optimizer)
    assert len(changes) == 1


def test_the_file_that_is_there_can_be_kept(tmp_path: Path) -> None:
    path, aside = tmp_path / "c.pt", tmp_path / "c.1.pt"
    path.write_text("earlier")
    model = nn.Linear(3, 2)
    for _ in range(2):  # once only: the second replaces the first
        checkpoint.save(path, SETTINGS, model, torch.optim.SGD(model.parameters()), Position(), aside=aside)
    assert aside.read_text() == "earlier"
    assert checkpoint.read(path, "w", model)["position"]["step"] == 0


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
    with pytest.raises(UsageError, match=r"c\.pt is damaged, or no checkpoint \(.*--resume FILE, or train anew"):
        checkpoint.read(tmp_path / "c.pt", "w", nn.Linear(1, 1))


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[Path, bytes, nn.Module]]:
    with TemporaryDirectory() as folder:
        path, model = Path(folder) / "c.pt", nn.Linear(3, 2)
        saved(path, model)
        yield path, path.read_bytes(), model


@settings(deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_is_of_no_consequence(
    whole: tuple[Path, bytes, nn.Module], place: float, bit: int
) -> None:
    """Anywhere: in the weights, in the pickle, in the zip file's own directory, in its padding."""
    path, content, model = whole
    flipped = bytearray(content)
    flipped[int(place * len(content))] ^= 1 << bit
    path.write_bytes(flipped)
    try:
        found = checkpoint.read(path, "w", model)
    except UsageError:
        return
    assert found["position"] == {"epoch": 2, "step": 30, "samples": 5}
    assert all(torch.equal(found["model"][name], value) for name, value in model.state_dict().items())


def test_a_flipped_bit_of_the_weights_is_found(whole: tuple[Path, bytes, nn.Module]) -> None:
    path, content, model = whole
    weights = model.weight.detach().numpy().tobytes()
    for offset in range(len(weights)):
        flipped = bytearray(content)
        flipped[content.index(weights) + offset] ^= 1 << offset % 8
        path.write_bytes(flipped)
        with pytest.raises(
            UsageError, match=r"c\.pt is damaged, or no checkpoint \(the checksum of archive/data/0 is wrong\)"
        ):
            checkpoint.read(path, "w", model)


@settings(deadline=None)
@given(st.floats(0, 1, exclude_max=True))
def test_a_file_that_ends_early_is_found(whole: tuple[Path, bytes, nn.Module], part: float) -> None:
    path, content, model = whole
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(UsageError, match="is damaged, or no checkpoint"):
        checkpoint.read(path, "w", model)


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoint.pt", nn.Linear(3, 2))
    with pytest.raises(UsageError, match=r"there is no checkpoint .*/checkpoint\.1\.pt; there is .*/checkpoint\.pt$"):
        checkpoint.read(tmp_path / "checkpoint.1.pt", "w", nn.Linear(3, 2))


def test_somebody_elses_checkpoint_is_told(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "c.pt")
    with pytest.raises(UsageError, match="is not a checkpoint of this runner"):
        checkpoint.read(tmp_path / "c.pt", "w", nn.Linear(1, 1))
