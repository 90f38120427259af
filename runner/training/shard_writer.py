"""Writes this rank's part of a sharded checkpoint, in the files that torch.distributed.checkpoint reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future


class ShardWriter(HuggingFaceStorageWriter):
    """torch's, which divides the work among the ranks, but for the writing: torch's own holds the file's bytes beside the tensors."""

    def __init__(self, folder: Path, write: Callable[[dict[str, Tensor], Path, dict[str, str]], None]) -> None:
        """``write``: tensors, to a file, with this metadata."""
        super().__init__(str(folder), save_distributed=True)
        self._folder, self._write = folder, write

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part. (torch takes no results for files that are not to be put together.)"""
        tensors: dict[str, Tensor] = {}
        offsets: dict[str, Any] = {}
        for item in plan.items:
            assert item.tensor_data is not None  # there are only tensors
            name = item.index.fqn
            part: Any = planner.resolve_data(item)
            tensors[name] = part.detach().cpu()
            offsets[name] = {"saved_offsets": item.tensor_data.chunk.offsets}
        if tensors:  # what several ranks have is written by one of them
            path = self._folder / f"shard-{plan.storage_data['shard_index']:05d}-model-00001-of-00001.safetensors"
            self._write(tensors, path, {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"})
        future: Future[list[WriteResult]] = Future()
        future.set_result([])
        return future
