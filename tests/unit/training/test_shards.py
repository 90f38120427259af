"""The files of checkpoints: those of other torches are read exactly, and what is not whole is told. Without a process group."""

from __future__ import annotations

import json
import os
import struct
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from runner.base.errors import UsageError
from runner.training.checkpoint import checkpoint_folder, shards
from runner.training.checkpoint.file_errors import DamagedError
from runner.training.checkpoint.shard_index import FULL, are_complete, index_of, path_of, shapes_of
from runner.training.checkpoint.shards import write_weights
from tests.launching import ROOT
from tests.programs.training import exact

OLD = ROOT / "tests" / "data" / "checkpoints"
ALONE: Any = SimpleNamespace(
    rank=0, gather=lambda value, _: [value], scatter=lambda values, _: values[0]
)  # the run of one rank
FOLDERS = [path.parent for path in sorted(OLD.glob("*/checkpoint.json"))]


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and found[name].equal(tensor) for name, tensor in expected.items()
    )


def read_shards(folder: Path, room: dict[str, Tensor]) -> None:
    shards.read_shards(folder, index_of(folder), room)


def write(folder: Path, *parts: dict[str, tuple[list[int], Tensor]]) -> None:
    """The shards that each rank has of tensors, and where they begin."""
    for rank, own in enumerate(parts):
        tensors, offsets = ({name: both[place] for name, both in own.items()} for place in (1, 0))
        shards.write(path_of(folder, rank), tensors, offsets)  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_another_torch_has_written_is_read(folder: Path) -> None:
    """Whole, by zero1, by fsdp; the one of 2.14.0 by torch's own module."""
    saved, sums = checkpoint_folder.read_manifest(folder)
    checkpoint_folder.check_files(folder, sums)
    expected = exact.tensors_after(saved.position.step)
    assert same(shards.read_full(folder), expected)
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in expected.items()}
    assert shapes_of(index_of(folder)) == shapes
    if checkpoint_folder.is_sharded(folder):
        room = {name: torch.full_like(tensor, 99) for name, tensor in expected.items()}
        read_shards(folder, room)
        assert same(room, expected)


def test_there_are_checkpoints_of_old_and_new_torches() -> None:
    assert len(FOLDERS) == 6


def test_a_file_has_the_names_and_metadata_that_torch_gives_it(tmp_path: Path) -> None:
    """By which its own module reads it."""
    (theirs,) = OLD.glob("*hf_storage")
    found = {}
    for folder in (theirs, tmp_path):
        shards.write_part(tmp_path, {"weight": torch.ones(2, 3), "step": torch.tensor(1.0)}, ALONE)
        (path, *_) = sorted(folder.glob("*.safetensors"))
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        where = json.loads(metadata["DCP_SHARDING_INFO"])
        kinds = {type(offset) for entry in where.values() for offset in entry["saved_offsets"]}
        shape = {tuple(entry) for entry in where.values()}
        found[path.parent] = path.name, metadata.keys(), metadata["format"], metadata["DCP_VERSION"], kinds, shape
    assert found[theirs] == found[tmp_path]
    assert where == {"weight": {"saved_offsets": [0, 0]}, "step": {"saved_offsets": []}}


# Types that torch may have and safetensors may hold, and the release of safetensors since which it does.
KINDS = {
    **dict.fromkeys(("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"), (0, 6)),
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), (0, 6)),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"), (0, 6)),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), (0, 8)),
    "complex64": (0, 7),
}
RELEASE = tuple(map(int, version("safetensors").split(".")[:2]))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if hasattr(torch, kind)])
def test_every_type_comes_back_from_two_shards_or_is_refused(kind: str, tmp_path: Path) -> None:
    dtype = getattr(torch, kind)
    content = torch.arange(12, dtype=torch.uint8)
    content = content.bool() if kind == "bool" else content.repeat_interleave(dtype.itemsize).view(dtype)
    tensor = content.reshape(3, 4)
    parts = {"weight": ([0, 0], tensor[:2])}, {"weight": ([2, 0], tensor[2:]), "one": ([], tensor[0, 1])}
    if KINDS[kind] > RELEASE:
        with pytest.raises(UsageError, match=rf"^weight is of torch\.{kind}, "):
            write(tmp_path, *parts)
        return
    write(tmp_path, *parts)
    room = {"weight": torch.empty_like(tensor), "one": torch.empty_like(tensor[0, 0])}
    read_shards(tmp_path, room)
    for found in (room, shards.read_full(tmp_path)):
        assert found["weight"].dtype == found["one"].dtype == tensor.dtype
        assert found["weight"].view(torch.uint8).equal(tensor.view(torch.uint8))
        assert found["one"].reshape(1).view(torch.uint8).equal(tensor[0, 1].reshape(1).view(torch.uint8))


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_type_that_cannot_be_written_is_told(is_sharded: bool, tmp_path: Path) -> None:
    tensors = {"fits": torch.ones(2), "weight": torch.ones(2, dtype=torch.complex128)}
    with pytest.raises(UsageError, match=r"^weight is of torch\.complex128, which safetensors cannot hold; have the"):
        shards.write_part(tmp_path, tensors, ALONE if is_sharded else None)


@pytest.mark.parametrize("name", [FULL, "shard-00001-" + FULL])
def test_a_type_that_this_torch_lacks_is_told(name: str, tmp_path: Path) -> None:
    header = json.dumps({"weight": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}).encode()
    (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(3))
    told = f"{name}: weight is of F6_E2M3, which torch {torch.__version__} lacks; take a newer torch"
    for read in (shards.read_full, index_of, lambda folder: read_shards(folder, {})):
        with pytest.raises(UsageError) as caught:
            read(tmp_path)
        assert str(caught.value) == f"{tmp_path}/{told}"


LEFT = torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    "parts",
    [
        [{"weight": ([0, 0], LEFT)}, {"weight": ([4, 0], LEFT)}],
        [{"weight": ([0, 2], LEFT)}],
        [{"weight": ([0, 0], LEFT)}, {"weight": ([2, 0], LEFT)}],
        [{"weight": ([0, 0], LEFT)}, {"weight": ([3, 2], LEFT)}],
        [{"weight": ([0, 0], LEFT)}, {"weight": ([3, 0], LEFT.half())}],
        [{"weight": ([0, 0], LEFT)}, {"weight": ([3], torch.ones(2))}],
    ],
    ids=["gap", "begins later", "overlap", "corners", "types", "dimensions"],
)
def test_shards_that_do_not_fit_together_are_reported(
    parts: list[dict[str, tuple[list[int], Tensor]]], tmp_path: Path
) -> None:
    write(tmp_path, *parts)
    room = {"weight": torch.ones(7, 2)}
    for read in (shards.read_full, index_of, lambda folder: read_shards(folder, room)):
        with pytest.raises(
            DamagedError, match=r"is damaged, or no checkpoint \(the shards of weight do not fit together\)"
        ):
            read(tmp_path)
    assert room["weight"].equal(torch.ones(7, 2))


def test_what_is_read_has_the_shape_that_is_wanted(tmp_path: Path) -> None:
    """Its last file may be missing, which the others do not tell."""
    write(tmp_path, {"weight": ([0, 0], LEFT)}, {"weight": ([3, 0], LEFT)})
    path_of(tmp_path, 1).unlink()
    with pytest.raises(DamagedError, match=r"\(of weight there is \(3, 2\), and not \(6, 2\)\)"):
        read_shards(tmp_path, {"weight": torch.ones(6, 2)})
    with pytest.raises(DamagedError, match=r"\(of other there is None, and not \(1,\)\)"):
        read_shards(tmp_path, {"other": torch.ones(1)})


def test_what_begins_nowhere_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"weight": ([0], LEFT)})
    with pytest.raises(DamagedError, match=r"\(shard-00001-.*: weight of shape \(3, 2\) is at \(0,\)\)"):
        shards.read_full(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no tensors", struct.pack("<Q", 1 << 60)])
def test_what_is_no_such_file_is_told(content: bytes, tmp_path: Path) -> None:
    path = path_of(tmp_path, 0)
    path.write_bytes(content)
    for read in (shards.read_full, index_of):
        with pytest.raises(DamagedError, match=rf"\({path.name}: "):
            read(tmp_path)


def test_other_files_beside_it_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"weight": ([0, 0], LEFT)})
    shards.write(tmp_path / "exported.safetensors", {"weight": torch.ones(1)})
    assert same(shards.read_full(tmp_path), {"weight": LEFT})


@given(
    rows=st.lists(st.integers(0, 3), max_size=3),
    columns=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    data=st.data(),
)
def test_a_grid_of_shards_is_complete_and_nothing_less_is(
    rows: list[int], columns: list[int], data: st.DataObject
) -> None:
    """Empty shards are not missed."""
    whole, parts = (sum(rows), sum(columns)), []
    for row, below in enumerate(rows):
        for column, right in enumerate(columns):
            at = sum(rows[:row]), sum(columns[:column])
            parts.append((at, (at[0] + below, at[1] + right)))
    parts = data.draw(st.permutations(parts))
    if not parts:
        return
    assert are_complete(*numpy.array(parts).swapaxes(0, 1))
    for lost in [part for part in parts if part[0][0] < part[1][0] and part[0][1] < part[1][1]][:-1]:
        begins, ends = numpy.array([part for part in parts if part is not lost]).swapaxes(0, 1)
        assert not are_complete(begins, ends) or tuple(ends.max(axis=0)) != whole


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o022, 0o644)])
def test_others_may_read_what_the_umask_says(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        shards.write(tmp_path / FULL, {"a": torch.ones(2)})
        write_weights(tmp_path / "w.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}
