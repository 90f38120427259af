"""A start of the job that waits, with torch imported, until it is needed: ``supervise --standby`` has one ready."""

from __future__ import annotations

import os
from datetime import timedelta

from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.job import Job
from runner.torchrun.import_hooks import import_ahead
from runner.torchrun.store import serve_store
from runner.versions import torch_private

_LONGEST = timedelta(days=20)  # torch's stores count milliseconds in 32 bits
_STANDARD_INPUT = 0
START, END = "start\n", "end\n"


def wait_until_needed(job: Job) -> None:
    """Import torch, then wait for the line "start" on rank 0's standard input. Called on all ranks.

    Raises:
        SystemExit: the line was "end": this start is not needed.
        RunnerError: there was another line, or none.
        UsageError: the launcher is torchrun, or another whose store serves several starts.
    """
    if job.context.launcher.has_store:
        with raised_on_all_ranks():
            raise UsageError(f"--standby: {job.context.launcher.title} keeps its store", fix="take mpirun or srun")
    import_ahead()
    with job.board.waiting():
        line = _line() if job.size == 1 else _line_by_store(job)
    if line == END:
        raise SystemExit(0)
    if line != START:
        with raised_on_all_ranks():
            raise RunnerError("--standby: neither 'start' nor 'end' came on rank 0's standard input")


def _line_by_store(job: Job) -> str:
    """Rank 0's line, on all ranks, by the job's store."""
    serve_store(job)
    limit = timedelta(seconds=job.collective_timeout)
    client = torch_private.TCPStore(job.endpoint.host, job.endpoint.port, is_master=False, timeout=limit)
    store = torch_private.PrefixStore("runner standby", client)
    if job.rank == 0:
        store.set("line", _line())
    else:
        store.wait(["line"], _LONGEST)
    return bytes(store.get("line")).decode()


def _line() -> str:
    try:
        return os.read(_STANDARD_INPUT, 64).decode(errors="replace") or "none"
    except OSError:  # it is closed
        return "none"
