"""Let ``init_process_group()`` join the runner's store, and only that one, as a client.

By TORCHELASTIC_USE_AGENT_STORE=True torchrun tells its workers that a store is served at MASTER_ADDR and MASTER_PORT, so that
all ranks join it as clients. A process that a rank starts, or a program in its place (os.execv), inherits the variable, and
would wait for ever if it sets another address. So the runner sets "1": torch's Python does not take that for True, and rank 0
serves a store; its C++ does, and joins the store at MASTER_PORT if there is one. A rank itself is told which store is the runner's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from runner.torchrun.import_hooks import when_imported
from runner.torchrun.own_modules import prepare_spawned
from runner.versions import torch_private

if TYPE_CHECKING:
    from runner.job import Job

IS_SERVED = "TORCHELASTIC_USE_AGENT_STORE"
_MODULE = "torch.distributed.rendezvous"
has_asked_for_ranks = threading.Event()  # this process has made a group, by any address or file
_made = threading.local()  # is_own: the store that this thread makes is the runner's


@dataclass(frozen=True, kw_only=True)
class Served:
    """The runner's store, as one rank of the job sees it.

    Attributes:
        process: the rank's process; others that see it were started by that one.
        starts: how often that process had started others by multiprocessing, when it had none.
    """

    host: str
    port: int
    rank: int
    size: int
    process: int
    starts: int = 0


def serve_own_endpoint_only(job: Job) -> None:
    """Make the variable apply to the runner's store only, in a program that imports torch later."""
    if not job.context.has_fresh_store:
        host, port = job.endpoint.host, job.endpoint.port
        join_only(Served(host=host, port=port, rank=job.rank, size=job.size, process=os.getpid()))


def join_only(served: Served) -> None:
    """Let a process of the program, and the processes that it starts by multiprocessing, only join the served store."""
    when_imported(_MODULE, lambda: _wrap_handlers(torch_private.rendezvous_handlers(), served))
    prepare_spawned(_told_by(served))


def _wrap_handlers(handlers: dict[str, Callable[..., Iterator[Any]]], served: Served) -> None:
    torch_private.decide_who_serves(lambda: getattr(_made, "is_own", False))

    def asked_for(url: str) -> tuple[str | None, str | None]:
        if url.startswith("env:"):
            return os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        address = urlparse(url)
        return address.hostname, str(address.port)

    def wrapped(handler: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def handle(url: str, *arguments: Any, **options: Any) -> Iterator[Any]:
            has_asked_for_ranks.set()
            found = handler(url, *arguments, **options)
            _made.is_own = is_own = asked_for(url) == (served.host, str(served.port))
            try:
                first = next(found)  # this makes the store
            finally:
                _made.is_own = False
            yield _of_own_group(served, *first) if is_own and os.getpid() != served.process else first
            yield from found

        return handle

    handlers.update({scheme: wrapped(handlers[scheme]) for scheme in ("env", "tcp", "file")})


def _of_own_group(served: Served, store: Any, rank: int, size: int) -> tuple[Any, int, int]:
    """Return the store that a process started by a rank gets at the job's address: the rank's place, or a place in a group of such processes.

    Raises:
        RuntimeError: several ranks have started such processes, which would all meet there.
    """
    if (rank, size) == (served.rank, served.size):
        return store, rank, size
    if served.size > 1:
        raise RuntimeError(
            f"rank {served.rank} of {served.size} has started a process that wants to be rank {rank} of {size} at MASTER_ADDR and "
            "MASTER_PORT, where the job's own ranks meet: start the script once, not by a launcher, or set both for such processes"
        )
    return torch_private.PrefixStore(f"started {served.starts}", store), rank, size


def _told_by(served: Served) -> Callable[[str], dict[str, Any]]:
    """Return what tells a process that multiprocessing starts anew to do as this one does."""
    starts = served.starts

    def told(name: str) -> dict[str, Any]:
        from multiprocessing import active_children

        nonlocal starts
        starts += name != "ignore" and not active_children()  # (that is the fork server's own start)
        return asdict(replace(served, starts=starts))

    return told
