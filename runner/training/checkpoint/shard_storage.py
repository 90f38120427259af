"""The files of ``shards``, for torch.distributed.checkpoint, which decides what each rank writes and reads.

Importing it imports DTensor and sympy, too: 0.8 s. Its interfaces have more arguments in newer torches than in 2.4.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from runner.training.checkpoint import shards
from runner.training.checkpoint.damage import damaged
from runner.training.checkpoint.shard_index import Index, path_of


class ShardStorage(StorageWriter):
    """A checkpoint's folder, which is written once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare_local_plan(self, plan: Any) -> Any:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        """Tell each rank its number."""
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shards. What several ranks have is written by one of them, so there may be none."""
        tensors: dict[str, Any] = {}
        offsets: dict[str, Any] = {}
        for item in plan.items:
            assert item.tensor_data is not None  # there are only tensors
            name = item.index.fqn
            assert name not in tensors  # of each a rank has one shard
            tensors[name], offsets[name] = planner.resolve_data(item), item.tensor_data.chunk.offsets
        if tensors:
            shards.write(path_of(self._folder, plan.storage_data), tensors, offsets)
        return _done([])

    # What the interfaces ask for beside.

    def reset(self, checkpoint_id: Any = None) -> None: ...

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None: ...

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None: ...

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def read_shards(folder: Path, index: Index, into: dict[str, Tensor]) -> None:
    """Fill this rank's shards of the tensors, also if they were sharded differently. Opens only the files that have them.

    torch plans the reading of tensors that are stored in one piece: that gives what this rank has of each. So no rank gets the
    plans of others, or all shards of a tensor.

    Raises:
        DamagedError: something is missing.
    """
    stored: dict[str, Any] = {}
    for name, tensor in into.items():
        found = index[name].shape if name in index else None
        if found != tuple(tensor.shape):  # as where the last file is missing
            raise damaged(folder, f"of {name} there is {found}, and not {tuple(tensor.shape)}")
        whole = ChunkStorageMetadata(torch.Size([0] * tensor.dim()), tensor.shape)
        stored[name] = TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), tensor.shape, [whole])
    planner = DefaultLoadPlanner()
    planner.set_up_planner(into, Metadata(stored), False)
    shards.read_into(
        folder,
        index,
        (
            (item.storage_index.fqn, item.storage_offsets, item.lengths, planner.resolve_tensor(item).detach())
            for item in planner.create_local_plan().items
        ),
    )


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
