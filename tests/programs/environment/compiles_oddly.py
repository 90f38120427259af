"""Compiles a graph that fails (``fails``), has a collective (``communicates``), or with a pass that has one (``exchanges``).

Prints the state of the locks of graphs.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx as compile_fx
import torch._inductor.config as inductor_config
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._inductor.custom_graph_pass import CustomGraphPass

LOCKS = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "runner-locks")


def fail(*arguments: Any, **named: Any) -> None:
    raise RuntimeError("it cannot be lowered")


def is_free(path: Path) -> bool:
    with open(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class Exchange(CustomGraphPass):
    def __call__(self, graph: torch.fx.Graph) -> None:
        dist.all_gather_object([None, None], str(graph))

    def uuid(self) -> str:
        return "exchange"


@torch.compile
def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@torch.compile
def total(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x.sin(), "sum", dist.group.WORLD)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    value = None
    if sys.argv[1] == "fails":
        compile_fx.fx_codegen_and_compile = fail
        try:
            sine(torch.ones(8))
        except Exception as error:
            value = type(error).__name__
    elif sys.argv[1] == "exchanges":
        inductor_config.post_grad_custom_post_pass = Exchange()
        value = sine(torch.ones(8))[0].item()
    else:
        value = total(torch.ones(8))[0].item()
    found = {"value": value, "locks": [is_free(path) for path in LOCKS.glob("*")] if LOCKS.is_dir() else []}
    dist.barrier()  # before the end, at which locks are free
    print(json.dumps({"rank": dist.get_rank()} | found), flush=True)
    dist.destroy_process_group()
