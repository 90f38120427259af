"""Messages of a worker to its agent, one class per kind, and the worker's end of the pipes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from runner.guard.hang.collectives import Call, answer
from runner.guard.link.link import Address
from runner.guard.report.board import Board

_TRACEBACK = 8000  # characters that are kept of it, the last ones: a message fits into a pipe


@dataclass(frozen=True)
class WorkerMessage:
    """A message of a worker, written as a line of JSON."""


@dataclass(frozen=True)
class Seeks(WorkerMessage):
    """The worker begins to look for the other ranks."""


@dataclass(frozen=True)
class Met(WorkerMessage):
    """The rendezvous is complete: its time limit ends."""

    address: Address | None  # of the link between the guards


@dataclass(frozen=True)
class Computes(WorkerMessage):
    """The worker computes on a GPU."""

    gpu: str  # its UUID


@dataclass(frozen=True, kw_only=True)
class Fails(WorkerMessage):
    """The worker is about to end with this code, and is to be killed if it does not."""

    code: int
    everywhere: bool  # all ranks do
    why: str = ""  # the cause, in a line
    traceback: str = ""
    signal: str | None = None  # that has asked for it


@dataclass(frozen=True)
class Leaves(WorkerMessage):
    """The worker ends by itself, with this code; MPI_Finalize() may keep it."""

    code: int


_KINDS: dict[str, type[WorkerMessage]] = {kind.__name__: kind for kind in WorkerMessage.__subclasses__()}


def read_message(line: bytes) -> WorkerMessage:
    """Parse a worker's message from its line."""
    kind, fields = json.loads(line)
    if fields.get("address") is not None:
        fields["address"] = Address(**fields["address"])
    return _KINDS[kind](**fields)


class Lifeline:
    """The worker's connection to its guard: messages, and its progress.

    Attributes:
        port: at which rank 0's agent listens for the others; 0 on other ranks.
        attempt: how often the ranks were started again.
        found: what the agent has found out about this rank's launch.
        origin: the process that the launcher has started for this rank.
    """

    def __init__(self, pipe: int, board: Board, *, asked: int, answers: IO[Any], origin: int) -> None:
        self._pipe, self._asked, self._answers = pipe, asked, answers
        self.board, self.origin = board, origin
        self.port = self.attempt = 0
        self.found = b""
        self.worker = os.getpid()  # a forked child has the lifeline too, but another process id

    def tell(self, message: WorkerMessage) -> None:
        """Tell the agent something."""
        if isinstance(message, Fails):
            message = replace(message, why=message.why[:500], traceback=message.traceback[-_TRACEBACK:])
        with contextlib.suppress(OSError):
            os.write(self._pipe, json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n")

    def answer_with(self, calls: Callable[[], list[Call]]) -> None:
        """Have a thread tell the agent, when it asks, what this rank has called last in each process group."""
        answer(self._asked, self._answers, calls)
