"""Which ranks have come to their end: told in the job's store, so that one that goes on waiting can name them."""

from __future__ import annotations

import contextlib
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from runner.comm.store import is_served
from runner.job import Job

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_ENDED = "runner/ended"  # in the job's store: how many ranks have ended, and, behind a slash and a number, which
_TELLING = timedelta(seconds=5)
_NAMED = 8  # ranks, at the most


def tell_end(job: Job) -> None:
    """Let the others know that this rank has come to its end, where that says something: while MPI's end keeps the store."""
    if _can_tell(job):
        with contextlib.suppress(RuntimeError):
            store = _client(job)
            store.set(f"{_ENDED}/{store.add(_ENDED, 1)}", str(job.rank))


def ended_ranks(job: Job) -> list[int]:
    """The first ranks that have told their end."""
    if not _can_tell(job):
        return []
    try:
        store = _client(job)
        numbers = range(1, min(store.add(_ENDED, 0), _NAMED) + 1)
        return sorted(int(store.get(f"{_ENDED}/{number}")) for number in numbers)
    except RuntimeError:
        return []


def _can_tell(job: Job) -> bool:
    return job.size > 1 and job.endpoint.way == "mpi" and is_served() and "torch.distributed" in sys.modules


def _client(job: Job) -> TCPStore:
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=_TELLING)
