"""The job's store, which rank 0 serves at the endpoint."""

from __future__ import annotations

import threading
from datetime import timedelta

from runner.comm.keeping import keep
from runner.job import Job

_has_served = threading.Event()


def serve_store(job: Job) -> None:
    """On rank 0, serve the job's store on the held socket until the process ends, once. Called on all ranks."""
    has_served = _has_served.is_set()
    _has_served.set()
    if has_served or job.endpoint.listener is None or job.endpoint.is_launchers:
        return
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(
        job.endpoint.host,
        job.endpoint.port,
        is_master=True,
        master_listen_fd=job.endpoint.listener.detach(),
        wait_for_workers=False,
        timeout=timedelta(seconds=job.collective_timeout),
    )
    keep(store)
