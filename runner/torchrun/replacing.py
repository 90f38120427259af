"""A program may put another in its place, often itself with other variables: MPI's launcher takes that for a crash unless MPI is finalised."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from runner.rendezvous.methods.mpi_library import finalize_mpi

_WITHIN = 10.0  # seconds: MPI_Finalize() waits for the other ranks, and one rank alone may do this


def finalize_before_exec() -> None:
    """Have ``os.execv()`` and its kin finalise MPI first. Call in a worker, before its program runs."""
    for name in ("execv", "execve"):
        setattr(os, name, partial(_replace, getattr(os, name), os.getpid()))


def _replace(execute: Callable[..., Any], worker: int, path: Any, *arguments: Any) -> None:
    if os.getpid() == worker and not isinstance(path, int) and os.access(path, os.X_OK):
        finalizing = threading.Thread(target=finalize_mpi, daemon=True)
        finalizing.start()
        finalizing.join(_WITHIN)
    execute(path, *arguments)
