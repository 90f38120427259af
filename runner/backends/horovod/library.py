"""Load and start the library ``horovod.torch``, and stop it while other backends are measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from runner.backends.collective_errors import agree
from runner.base.errors import RefusedError

WITHOUT_CUDA = (
    "this Horovod was built without CUDA, and the job computes on GPUs; where a CUDA toolkit is (CUDA_HOME) make horovod "
    "builds it with NCCL"
)
_HOW = "make horovod builds and installs it (python envs/build_horovod.py in another environment)"


def start_horovod(size: int, device: str) -> Any:
    """Import ``horovod.torch`` and initialise it. Returns the module. Collective, by torch.distributed's default group.

    Args:
        size: how many ranks there are.
        device: the type of the device that they compute on, cpu or cuda.

    Raises:
        UsageError: on a rank it is not installed, does not load, or was built without support for the device.
        RefusedError: it sees a different number of ranks.
    """
    import torch.distributed as dist

    fix = f"{_HOW}, or say --device cpu" if device == "cuda" else _HOW
    agree("Horovod is not installed" if find_spec("horovod") is None else None, fix=fix)
    # Rank 0 first: it serves what the others' imports may wait for (rendezvous.py).
    is_first = dist.get_rank() == 0
    agree(_problem_of_loading(device) if is_first else None, fix=fix)
    agree(None if is_first else _problem_of_loading(device), fix=fix)
    import horovod.torch as hvd

    hvd.init()
    seen = hvd.size()
    problem = f"Horovod sees {seen} ranks, and there are {size}: it was built for another MPI" if seen != size else None
    agree(problem, RefusedError, fix=_HOW)
    return hvd


def _problem_of_loading(device: str) -> str | None:
    try:
        import horovod.torch as hvd
    except Exception as error:  # a symbol that this torch does not have, a missing library
        return f"Horovod does not load ({' '.join(str(error).split())[:200]})"
    return WITHOUT_CUDA if device == "cuda" and not (hvd.cuda_built() or hvd.rocm_built()) else None


@contextmanager
def in_turn(hvd: Any) -> Iterator[None]:
    """Run Horovod inside the block only: its thread polls the other ranks every millisecond, which slows other backends.

    With its gloo controller Horovod can be initialised only once, so it keeps running.
    """
    can_rest = os.environ.get("HOROVOD_CONTROLLER") != "gloo"
    if can_rest:
        hvd.init()
    try:
        yield
    finally:
        if can_rest:
            hvd.shutdown()
