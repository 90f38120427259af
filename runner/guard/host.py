"""What the guard of a rank has of its host."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any, NamedTuple

from runner.guard.events import Events
from runner.guard.line import Link
from runner.guard.origin import Origin


class OnHost(NamedTuple):
    """One rank's.

    Attributes:
        importer: the process of which workers are forked (0: there is none), and the file for its stack.
        workers: the processes of all ranks' workers.
    """

    origin: Origin
    events: Events
    link: Link
    importer: Callable[[], tuple[int, IO[Any]]]
    workers: Callable[[], set[int]]
