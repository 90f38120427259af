"""Checkpoints on disk: what was written comes back, and what was damaged is told. Without a process group."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from runner.base.errors import UsageError
from runner.training.checkpoint import checkpoint_folder, shards
from runner.training.checkpoint.checkpoint_folder import Position, Saved
from tests.launching import ROOT, ok, run

TENSORS = {
    "model.weight": torch.arange(6.0).reshape(2, 3),
    "model.steps": torch.tensor(7),
    "model.half": torch.ones(3, dtype=torch.bfloat16),
    "model.nothing": torch.empty(0),
    "optimizer.weight.exp_avg": torch.full((2, 3), 0.5, dtype=torch.float64),
}


def written(folder: Path, step: int, tensors: dict[str, Tensor] = TENSORS) -> Path:
    path = folder / checkpoint_folder.name_of(step)
    staging_folder = folder / f".{path.name}.new"
    staging_folder.mkdir()
    shards.write_part(staging_folder, tensors)
    saved = Saved(
        path=path,
        workload="workloads.test",
        position=Position(2, step, 5),
        settings={"seed": 0, "lr": 0.1},
        groups=[{"lr": 0.1, "betas": [0.9, 0.999], "params": ["weight"]}],
        values={"weight": {"exp_avg": {"tensor": "optimizer.weight.exp_avg"}}},
    )
    checkpoint_folder.write_manifest(staging_folder, saved, checkpoint_folder.sums_of(staging_folder.iterdir()))
    checkpoint_folder.put_in_place(staging_folder, path)
    return path


def read(path: Path) -> tuple[Saved, dict[str, Tensor]]:
    saved, sums = checkpoint_folder.read_manifest(path)
    checkpoint_folder.check_files(path, sums)
    return saved, shards.read_full(path)


def test_everything_comes_back(tmp_path: Path) -> None:
    path = written(tmp_path, 30)
    saved, tensors = read(path)
    assert saved.position == Position(2, 30, 5)
    assert (saved.path, saved.workload, saved.settings) == (path, "workloads.test", {"seed": 0, "lr": 0.1})
    assert saved.values == {"weight": {"exp_avg": {"tensor": "optimizer.weight.exp_avg"}}}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert [p.name for p in tmp_path.iterdir()] == ["step-30"]
    assert {file.suffix for file in path.iterdir()} == {".json", ".safetensors"}  # nothing is pickled


def test_tensors_in_one_memory_or_with_gaps_come_back(tmp_path: Path) -> None:
    """Tied weights, channels last, a column of a matrix."""
    matrix = torch.arange(12.0).reshape(3, 4)
    image = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    given_tensors = {"a": matrix, "b": matrix, "rest": matrix[1:], "column": matrix[:, 1], "image": image}
    _, tensors = read(written(tmp_path, 1, given_tensors))
    assert all(torch.equal(tensors[name], tensor) for name, tensor in given_tensors.items())


def test_only_what_is_complete_is_found_newest_first(tmp_path: Path) -> None:
    paths = [written(tmp_path, step) for step in (9, 100, 20)]
    (tmp_path / "step-200").mkdir()
    (tmp_path / "step-last").mkdir()
    (tmp_path / "step-300").write_text("a file")
    assert checkpoint_folder.steps_in(tmp_path) == [(100, paths[1]), (20, paths[2]), (9, paths[0])]
    (paths[1] / "checkpoint.json").unlink()
    assert [step for step, _ in checkpoint_folder.steps_in(tmp_path)] == [20, 9]
    checkpoint_folder.remove(paths[2])
    assert [step for step, _ in checkpoint_folder.steps_in(tmp_path)] == [9]


def test_one_of_the_same_step_is_deleted_when_the_new_one_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting takes long: a job that is killed meanwhile has lost neither."""
    written(tmp_path, 3)
    delete, steps = shutil.rmtree, []

    def deleted(path: Path, **options: Any) -> None:
        steps.append([step for step, _ in checkpoint_folder.steps_in(tmp_path)])
        delete(path, **options)

    monkeypatch.setattr(shutil, "rmtree", deleted)
    path = written(tmp_path, 3, {"model.weight": torch.zeros(1)})
    assert steps
    assert all(found == [3] for found in steps)
    assert read(path)[1].keys() == {"model.weight"}
    assert [p.name for p in tmp_path.iterdir()] == ["step-3"]


PEAK = """
import resource, sys, torch
from pathlib import Path
from types import SimpleNamespace
from runner.training.checkpoint import shards
alone = SimpleNamespace(rank=0, gather=lambda value, _: [value], scatter=lambda values, _: values[0])
small, large = Path(sys.argv[1], "small"), Path(sys.argv[1], "large")
tensors = {"model.weight": torch.ones(64 << 20), "model.steps": torch.tensor(7)}  # 256 MiB
for folder, of in ((small, {"model.steps": torch.tensor(7)}), (large, tensors)):
    folder.mkdir()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    written = shards.write_part(folder, of, alone)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
assert shards.read_full(large)["model.weight"].equal(tensors["model.weight"])
assert [path.name for path in written] == ["shard-00001-model-00001-of-00001.safetensors"]
"""


def test_a_part_is_written_without_another_copy_in_memory(tmp_path: Path) -> None:
    done = ok(run(sys.executable, "-c", PEAK, str(tmp_path), cwd=ROOT))
    assert int(done.stdout) < 100 << 10, "KiB more than before"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EIO])
def test_a_file_system_that_cannot_flush_a_folder_has_the_checkpoint_and_a_disk_that_fails_is_told(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error") if number == errno.EIO else nullcontext():
        assert read(written(tmp_path, 3))[1].keys() == TENSORS.keys()


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield written(Path(folder), 30)


@pytest.mark.parametrize("name", ["checkpoint.json", "model-00001-of-00001.safetensors"])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_is_of_no_consequence(whole: Path, name: str, place: float, bit: int) -> None:
    """Anywhere: in the tensors, in their names, in the settings, in the sums themselves."""
    content = (whole / name).read_bytes()
    flipped = bytearray(content)
    flipped[int(place * len(content))] ^= 1 << bit
    (whole / name).write_bytes(flipped)
    try:
        saved, tensors = read(whole)
    except UsageError:
        return
    finally:
        (whole / name).write_bytes(content)
    assert saved.position == Position(2, 30, 5)
    assert all(torch.equal(tensors[key], tensor) for key, tensor in TENSORS.items())


def test_a_later_format_and_somebody_elses_file_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    content = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(content | {"format": 3}))
    with pytest.raises(UsageError, match="is of format 3, and this runner reads 2; update the runner"):
        read(path)
    (path / "checkpoint.json").write_text("{}")
    with pytest.raises(UsageError, match="lacks entries"):
        read(path)
