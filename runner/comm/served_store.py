"""Let ``init_process_group()`` join the runner's store, and only that one, as a client.

By TORCHELASTIC_USE_AGENT_STORE torchrun tells its workers that a store is served at MASTER_ADDR and MASTER_PORT, so that
all ranks join it as clients; the runner does the same. But the variable must apply to that store only: otherwise a script
that sets MASTER_ADDR and MASTER_PORT itself, or processes that it spawns by multiprocessing, which are not ranks of the
job, would wait for a store that no process serves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any
from urllib.parse import urlparse

from runner.comm.importing import when_imported
from runner.environment import without_variable
from runner.job import Job

IS_SERVED = "TORCHELASTIC_USE_AGENT_STORE"
_MODULE = "torch.distributed.rendezvous"
# The modules by which multiprocessing starts processes that do not inherit this one's modules.
_SPAWNING = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")


def serve_own_endpoint_only(job: Job) -> None:
    """Make the variable apply to the runner's store only, in a program that imports torch later."""
    if job.context.launcher.has_store:
        return
    endpoint = job.endpoint.host, str(job.endpoint.port)
    when_imported(_MODULE, lambda: _wrap_handlers(vars(sys.modules[_MODULE])["_rendezvous_handlers"], endpoint))
    for module in _SPAWNING:
        when_imported(module, partial(_wrap_launch, module))


def _wrap_handlers(handlers: dict[str, Callable[..., Iterator[Any]]], endpoint: tuple[str, str]) -> None:
    def asked_for(url: str) -> tuple[str | None, str | None]:
        if url.startswith("env:"):
            return os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        return urlparse(url).hostname, str(urlparse(url).port)

    def wrapped(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def handle(url: str, *arguments: Any, **options: Any) -> Iterator[Any]:
            found = handler(url, *arguments, **options)
            with nullcontext() if asked_for(url) == endpoint else without_variable(IS_SERVED):
                first = next(found)  # this makes the store
            yield first
            yield from found

        return handle

    handlers.update({scheme: wrapped(handlers[scheme]) for scheme in ("env", "tcp")})


def _wrap_launch(module: str) -> None:
    popen = vars(sys.modules[module])["Popen"]
    launch = popen._launch

    def launch_without_the_variable(self: Any, process: Any) -> None:
        with without_variable(IS_SERVED):
            launch(self, process)

    popen._launch = launch_without_the_variable
