"""The files of ``shards``, for torch.distributed.checkpoint, which decides what each rank writes and reads.

Importing it imports DTensor and sympy, too: 0.8 s. Its interfaces have more arguments in newer torches than in 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from runner.training.checkpoint import shards
from runner.training.checkpoint.damage import damaged
from runner.training.checkpoint.shards import Shard


class ShardStorage(StorageReader, StorageWriter):
    """A checkpoint's folder, which is written or read once."""

    def __init__(self, folder: Path, wanted: Mapping[str, Tensor]) -> None:
        """``wanted``: what is to be read, with its full shapes."""
        self._folder = folder
        self._wanted = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
        self._shards: dict[str, list[Shard]] = {}
        self._problem: Exception | None = None

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
            shards.write(shards.path_of(self._folder, plan.storage_data), tensors, offsets)
        return _done([])

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What is there."""
        try:
            self._shards = shards.shards_in(self._folder)
        except Exception as error:  # torch would log it and continue: the next that it calls raises it
            self._problem = error
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=own[0].dtype),
                    torch.Size(shards.shape_of(own)),
                    [
                        ChunkStorageMetadata(torch.Size(shard.offsets), torch.Size(shard.shape))
                        for shard in _nonempty(own)
                    ],
                )
                for name, own in self._shards.items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """See that all is there that is to be read.

        Raises:
            UsageError: it is not.
        """
        if self._problem is not None:
            raise self._problem
        for name, shape in self._wanted.items():
            found = shards.shape_of(self._shards[name]) if name in self._shards else None
            if found != shape:  # as where the last file is missing
                raise damaged(self._folder, f"of {name} there is {found}, and not {shape}")

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank has, of each file only that."""
        where = {(shard.name, shard.offsets): shard for own in self._shards.values() for shard in _nonempty(own)}
        items = ((where[item.storage_index.fqn, tuple(item.storage_index.offset or ())], item) for item in plan.items)
        for path, own in shards.by_file(items).items():
            with shards.opened(path) as file:
                for item in own:
                    spans = zip(item.storage_offsets, item.lengths, strict=True)
                    place = tuple(slice(begin, begin + length) for begin, length in spans)
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(file.get_slice(item.storage_index.fqn)[place])
                    planner.commit_tensor(item, target)
        return _done(None)

    # What the interfaces ask for beside.

    def reset(self, checkpoint_id: Any = None) -> None: ...

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None: ...

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None: ...

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def _nonempty(own: list[Shard]) -> list[Shard]:
    """Those with anything in them: a rank beyond the end of a tensor has an empty one, which begins where another may."""
    return [shard for shard in own if 0 not in shard.shape]


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
