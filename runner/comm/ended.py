"""Record in the job's store which ranks have ended, so that a rank that still waits for them can name them."""

from __future__ import annotations

import contextlib
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from runner.comm.store import is_served
from runner.job import Job

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_ENDED = "runner/ended"  # key of the number of ended ranks; "runner/ended/1" is the first of them
_TELLING = timedelta(seconds=5)
_CONNECTING = 1.0  # seconds
_NAMED = 8  # ranks, at the most


def tell_end(job: Job) -> None:
    """Record that this rank has ended, unless rank 0, which serves the store, has ended before. (MPI_Finalize() keeps it.)"""
    if _can_tell(job) and not _has_rank_0_ended(job):
        with contextlib.suppress(RuntimeError):
            store = _client(job)
            store.set(f"{_ENDED}/{store.add(_ENDED, 1)}", str(job.rank))


def ended_ranks(job: Job) -> list[int]:
    """The first ranks that have recorded their end, at most 8."""
    if not _can_tell(job):
        return []
    if _has_rank_0_ended(job):
        return [0]
    try:
        store = _client(job)
        numbers = range(1, min(store.add(_ENDED, 0), _NAMED) + 1)
        return sorted(int(store.get(f"{_ENDED}/{number}")) for number in numbers)
    except RuntimeError:
        return []


def _can_tell(job: Job) -> bool:
    return job.size > 1 and not job.endpoint.is_launchers and is_served() and "torch.distributed" in sys.modules


def _has_rank_0_ended(job: Job) -> bool:
    """Whether nobody serves the store any more. (A client of torch's would try for some time, and print that.)"""
    if job.rank == 0 or job.endpoint.way == "mpi":
        return False
    try:
        socket.create_connection((job.endpoint.host, job.endpoint.port), _CONNECTING).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _client(job: Job) -> TCPStore:
    from torch._C._distributed_c10d import TCPStore

    return TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=_TELLING)
