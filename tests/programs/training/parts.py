"""A workload of 4 ranks that writes tensors in parts and reads them under every other layout, or sees why it cannot.

parts FOLDER [lost|torn]
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from runner.training.checkpoint import shards
from runner.training.checkpoint.file_errors import DamagedError
from runner.training.checkpoint.shard_index import index_of, path_of
from runner.training.run import Run

MATRIX = torch.arange(42.0).reshape(7, 6)
WHOLE = {
    "odd": MATRIX,
    "tied": MATRIX,
    "half": torch.arange(24).reshape(4, 3, 2).to(torch.bfloat16),
    "counts": torch.arange(10).reshape(2, 5).to(torch.uint8),  # some ranks have none
    "nothing": torch.empty(0, 3),
    "step": torch.tensor(7.0),
}
LAYOUTS: dict[str, list[Placement]] = {
    "rows": [Shard(0), Shard(0)],
    "columns": [Shard(1), Shard(1)],
    "both": [Shard(0), Shard(1)],
    "replicas": [Replicate(), Shard(0)],
    "whole": [],
}


def sharded(layout: str) -> dict[str, Tensor]:
    """The tensors; parts of columns have gaps in memory."""
    placements = LAYOUTS[layout]
    if not placements:
        return dict(WHOLE)
    mesh = init_device_mesh("cpu", (2, 2))
    parts: dict[str, Tensor] = {}
    for name, tensor in WHOLE.items():
        if tensor.dim():
            part = distribute_tensor(tensor, mesh, placements)
            own = part.to_local().mT.contiguous().mT
            part = DTensor.from_local(own, mesh, placements, shape=tensor.shape, stride=tensor.stride())
        parts[name] = part if tensor.dim() else tensor
    parts["tied"] = parts["odd"]
    return parts


def room(layout: str) -> dict[str, Tensor]:
    """What to read into: nothing of it may be left."""
    return {name: torch.full_like(tensor, 99) for name, tensor in sharded(layout).items()}


def see_all(found: dict[str, Tensor]) -> None:
    for name, tensor in WHOLE.items():
        whole = found[name].full_tensor() if isinstance(found[name], DTensor) else found[name]
        torch.testing.assert_close(whole, tensor, rtol=0, atol=0)


def main(run: Run, argv: list[str]) -> None:
    folder, what = Path(argv[0]), argv[1] if len(argv) > 1 else "nothing"
    folders = {layout: folder / layout for layout in LAYOUTS}
    if run.is_main:
        for made in folders.values():
            made.mkdir()
    dist.barrier()
    for layout, where in folders.items():
        shards.write_part(where, sharded(layout), run)
        dist.barrier()
    if what == "nothing":
        for written, read in itertools.product(LAYOUTS, repeat=2):
            found = room(read)
            shards.read_shards(folders[written], index_of(folders[written]), found)
            see_all(found)
        see_all(shards.read_full(folders["both"]))
        return
    where = folders["rows"]
    if run.is_main:
        os.remove(path_of(where, 3 if what == "lost" else 1))  # the end of some, or what lies between
    dist.barrier()
    with pytest.raises(DamagedError) as damage:
        shards.read_shards(where, index_of(where), room("columns"))
    run.print(damage.value.message.removeprefix(str(where)))
