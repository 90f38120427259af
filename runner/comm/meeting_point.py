"""The meeting point of ``init_process_group()``: the runner's store, as long as it is the runner's that is asked for.

torch has rank 0 start the store at MASTER_ADDR and MASTER_PORT, and finds one that this process has there already. Where a
script gives its ranks in another order than the launcher's, rank 0 is another process; so all ranks join the store as
clients, as under torchrun. A script that sets MASTER_ADDR and MASTER_PORT itself, and a process that it spawns, does
without any of this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from runner.comm.importing import when_imported
from runner.comm.job import Job

_MODULE = "torch.distributed.rendezvous"
_IS_SERVED = "TORCHELASTIC_USE_AGENT_STORE"  # torch's word for it; it looks at it when it makes the store


def join_when_imported(job: Job) -> None:
    """Have ``env://`` join the store that rank 0 of the launcher serves, in a program that is yet to import torch."""
    if job.size > 1 and job.context.launcher.name != "torchrun":
        when_imported(_MODULE, lambda: _join(vars(sys.modules[_MODULE])["_rendezvous_handlers"], job))


def _join(handlers: dict[str, Callable[..., Iterator[Any]]], job: Job) -> None:
    by_environment = handlers["env"]

    def by_runner(*arguments: Any, **options: Any) -> Iterator[Any]:
        found = by_environment(*arguments, **options)
        with _served(job):
            first = next(found)
        yield first
        yield from found

    handlers["env"] = by_runner


@contextmanager
def _served(job: Job) -> Iterator[None]:
    asked_for = (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"))
    if asked_for != (job.endpoint.host, str(job.endpoint.port)) or _IS_SERVED in os.environ:
        yield
        return
    os.environ[_IS_SERVED] = "True"
    try:
        yield
    finally:
        del os.environ[_IS_SERVED]
