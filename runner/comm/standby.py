"""A start of the job that waits, with torch imported, until it is needed: ``supervise --standby`` has one ready."""

from __future__ import annotations

import os
from datetime import timedelta

from runner.comm.store import serve_store
from runner.guard.nursery import import_ahead
from runner.job import Job

_LONGEST = timedelta(days=20)  # torch's stores count milliseconds in 32 bits
_STANDARD_INPUT = 0
GO_ON, END = b"go on\n", b"end\n"


def wait_until_needed(job: Job) -> None:
    """Import torch, then wait for the line "go on" on rank 0's standard input. Called on all ranks.

    Raises:
        SystemExit: there was another line, or none, so this start is not needed.
    """
    import_ahead()
    with job.board.during("standby"):
        is_needed = _is_told_by_line() if job.size == 1 else _is_told_by_store(job)
    if not is_needed:
        raise SystemExit(0)


def _is_told_by_store(job: Job) -> bool:
    """Rank 0's answer, by the job's store."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    serve_store(job)
    limit = timedelta(seconds=job.collective_timeout)
    client = TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=limit)
    store = PrefixStore("runner standby", client)
    if job.rank == 0:
        store.set("needed", "yes" if _is_told_by_line() else "no")
    else:
        store.wait(["needed"], _LONGEST)
    return bytes(store.get("needed")) == b"yes"


def _is_told_by_line() -> bool:
    try:
        return os.read(_STANDARD_INPUT, 64) == GO_ON
    except OSError:  # it is closed
        return False
