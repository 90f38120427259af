"""Checkpoints of earlier versions, one file each, are still read."""

from __future__ import annotations

import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from runner.errors import UsageError
from runner.parallel.state import State, load_state
from runner.training.checkpoint_file import is_foreign, read_file
from runner.training.checkpoint_folder import Position

DATA = Path(__file__).parent.parent / "data" / "checkpoints"


def model_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_file_of_version_1_is_read() -> None:
    """It was written by that version, from this model."""
    model, optimizer = model_and_optimizer(seed=0)
    other, its_optimizer = model_and_optimizer(seed=1)
    saved, tensors = read_file(DATA / "version-1.pt", other, its_optimizer)
    assert (saved.workload, saved.position) == ("workloads.test", Position(2, 30, 5))
    assert saved.settings is not None
    assert saved.settings["optimizer"] == "Adam"
    assert saved.groups[0]["params"] == ["weight", "bias"]
    load_state(other, its_optimizer, State(tensors, saved.groups, saved.values))
    assert torch.equal(other.weight, model.weight)
    expected, found = optimizer.state_dict(), its_optimizer.state_dict()
    for group, own in zip(found["param_groups"], expected["param_groups"], strict=True):
        assert group == group | own  # older torches lack options of the torch that wrote it
    for number, state in expected["state"].items():
        assert all(torch.equal(found["state"][number][name], value) for name, value in state.items())


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip"])
def test_a_broken_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(UsageError, match=r"c\.pt is damaged, or no checkpoint \(.*--resume CHECKPOINT, or train anew"):
        read_file(tmp_path / "c.pt", *model_and_optimizer(0))


def test_a_flipped_bit_of_the_weights_is_found(tmp_path: Path) -> None:
    content = bytearray((DATA / "version-1.pt").read_bytes())
    weights = model_and_optimizer(0)[0].weight.detach().numpy().tobytes()
    content[content.index(weights) + 3] ^= 16
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(UsageError, match=r"c\.pt is damaged, or no checkpoint \(the checksum of .*data/0 is wrong\)"):
        read_file(tmp_path / "c.pt", *model_and_optimizer(0))


def test_somebody_elses_file_is_told(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "c.pt")
    with pytest.raises(UsageError, match="is not a checkpoint of this runner"):
        read_file(tmp_path / "c.pt", *model_and_optimizer(0))


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_file_whose_pickle_is_damaged_is_not_taken_for_somebody_elses(place: float, bit: int) -> None:
    content = bytearray((DATA / "version-1.pt").read_bytes())
    with zipfile.ZipFile(DATA / "version-1.pt") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        pickled = archive.read(name)
    content[content.index(pickled) + int(place * len(pickled))] ^= 1 << bit
    with TemporaryDirectory() as folder:
        path = Path(folder, "c.pt")
        path.write_bytes(content)
        assert not is_foreign(path)
        with pytest.raises(UsageError, match=r"c\.pt is damaged, or no checkpoint"):
            read_file(path, *model_and_optimizer(0))


def test_whose_an_intact_file_is(tmp_path: Path) -> None:
    assert not is_foreign(DATA / "version-1.pt")
    torch.save({"state_dict": {}}, tmp_path / "c.pt")
    assert is_foreign(tmp_path / "c.pt")
    torch.save(nn.Linear(1, 1), tmp_path / "c.pt")
    assert is_foreign(tmp_path / "c.pt")
