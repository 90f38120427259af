"""Compiles a small model on each rank, and prints how many graphs this rank has compiled, how long its first step took, and its cache."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch._inductor.codecache as codecache
import torch.distributed as dist
from torch import nn

saved: list[str] = []


def count_saves() -> None:
    save = codecache.FxGraphCache._save_graph

    def counting(key: str, *arguments: Any) -> None:
        saved.append(key)
        if "--die" in sys.argv and dist.get_rank() == 0:
            os._exit(9)
        save(key, *arguments)

    codecache.FxGraphCache._save_graph = staticmethod(counting)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.gelu(self.linear(self.norm(x)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    count_saves()
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(Block(), Block()))
    start = time.monotonic()
    value = model(torch.ones(8, 64)).sum()
    value.backward()
    dist.barrier()
    found = {"rank": dist.get_rank(), "graphs": len(saved), "seconds": time.monotonic() - start, "value": value.item()}
    print(json.dumps(found | {"cache": os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")}), flush=True)
    dist.destroy_process_group()
