"""Load and start the library ``horovod.torch``, and stop it while other backends are measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from runner.errors import RefusedError, UsageError, raised_on_all_ranks

WITHOUT_CUDA = (
    "this Horovod was built without CUDA, and the job computes on GPUs; where a CUDA toolkit is (CUDA_HOME) make horovod "
    "builds it with NCCL"
)
_HOW = "make horovod builds and installs it (python envs/build_horovod.py in another environment)"


@raised_on_all_ranks()
def start_horovod(size: int, device: str) -> Any:
    """Import ``horovod.torch`` and initialise it. Returns the module.

    Args:
        size: how many ranks there are.
        device: the type of the device that they compute on, cpu or cuda.

    Raises:
        UsageError: it is not installed, does not load, or was built without support for the device.
        RefusedError: it sees a different number of ranks.
    """
    if find_spec("horovod") is None:
        raise UsageError(f"Horovod is not installed; {_HOW}")
    try:
        import horovod.torch as hvd
    except Exception as error:  # a symbol that this torch does not have, a missing library
        reason = " ".join(str(error).split())
        raise UsageError(f"Horovod does not load ({reason[:200]}); {_HOW}") from None
    if device == "cuda" and not (hvd.cuda_built() or hvd.rocm_built()):
        raise UsageError(f"{WITHOUT_CUDA}; or say --device cpu")
    hvd.init()
    if hvd.size() != size:
        raise RefusedError(
            f"Horovod sees {hvd.size()} ranks, and there are {size}: it was built for another MPI; {_HOW}"
        )
    return hvd


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
