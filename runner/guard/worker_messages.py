"""What a worker tells its guard, one class per kind of message, and how it is written as a line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TypeAlias, get_args

from runner.guard.line import Address


@dataclass(frozen=True)
class Seeks:
    """The worker begins to look for the other ranks."""


@dataclass(frozen=True)
class Met:
    """The rendezvous is complete: its time limit ends."""

    address: Address | None  # of the line between the guards


@dataclass(frozen=True)
class Computes:
    """The worker computes on a GPU."""

    gpu: str  # its UUID


@dataclass(frozen=True, kw_only=True)
class Fails:
    """The worker is about to end with this code, and is to be killed if it does not."""

    code: int
    everywhere: bool  # all ranks do
    why: str = ""  # the cause, in a line
    traceback: str = ""
    signal: str | None = None  # that has asked for it


@dataclass(frozen=True)
class Leaves:
    """The worker ends by itself, with this code; MPI_Finalize() may keep it."""

    code: int


WorkerMessage: TypeAlias = Seeks | Met | Computes | Fails | Leaves

_KINDS: dict[str, type[WorkerMessage]] = {kind.__name__: kind for kind in get_args(WorkerMessage)}


def written(message: WorkerMessage) -> bytes:
    """The line, with its end."""
    return json.dumps([type(message).__name__, asdict(message)]).encode() + b"\n"


def read_message(line: bytes) -> WorkerMessage:
    """What was written."""
    kind, fields = json.loads(line)
    if fields.get("address") is not None:
        fields["address"] = Address(**fields["address"])
    return _KINDS[kind](**fields)
