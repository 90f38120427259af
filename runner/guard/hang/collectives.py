"""The last collective of each rank, for which a guard asks its worker when the job hangs.

A thread of the worker answers, so it does also while the program waits in a collective; not while something holds the GIL.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any, NamedTuple, TypeVar

from runner.guard.hang.stacks import Inside
from runner.guard.process.events import readable
from runner.rendezvous.records.topology import ranks_text

_WITHIN = 2.0  # seconds for an answer
_KEPT = 30.0  # seconds after a question in which the next one may be about the same call
_MOST = 8  # process groups in a report
_MISSING = "missing: "
Key = TypeVar("Key")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A rank's last call in a process group, or its oldest call that is not over."""

    group: str  # the group's name, the same on all its ranks
    title: str = ""  # what the program calls it
    ranks: Sequence[int] = ()  # the group's; none: all of the job
    number: int = 0  # of a collective, the group's first is 1; 0: none yet, or a message
    name: str = ""
    is_over: bool = True


class Answer(NamedTuple):
    """A worker's answer to its guard."""

    calls: list[Call]
    inside: int  # of what call of torch.distributed the main thread is in: another number for each; 0: in none


def answer(asked: int, file: IO[Any], calls: Callable[[], list[Call]]) -> None:
    """Let the guard take this worker's calls from now on.

    Args:
        asked: the pipe on which the guard asks.
        file: shared with the guard.
    """

    own = _identity(asked), _identity(file.fileno())
    inside = Inside()

    def work() -> None:
        while True:
            if inside.keeps_a_call and not readable([asked], _KEPT):
                inside.forget()  # the guard asks no more, as a training has begun
            if not os.read(asked, 16):
                return
            try:
                found = [asdict(call) for call in calls()]
            except Exception:  # of torch's inner parts, which may change: the report goes without
                found = []
            text = json.dumps({"calls": found, "inside": inside.look()})
            if own != (_identity(asked), _identity(file.fileno())):
                return  # the program has closed all files, and may have others by these numbers
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), text.encode() + b"\n", 0)

    def listen() -> None:
        with contextlib.suppress(OSError):
            work()

    with contextlib.suppress(RuntimeError):  # there is no room for one more thread
        threading.Thread(target=listen, name="collectives", daemon=True).start()


@dataclass(frozen=True)
class Requests:
    """A guard's questions to its worker about collectives.

    Attributes:
        pipe: on which the guard asks.
        file: with the answer.
    """

    pipe: int
    file: IO[Any]

    def ask(self) -> None:
        """Ask the worker for its calls."""
        os.ftruncate(self.file.fileno(), 0)
        with contextlib.suppress(OSError):
            os.write(self.pipe, b"?")

    def answered(self) -> Answer | None:
        """Return the worker's answer, or None if there is none yet."""
        text = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size, 0)
        if not text.endswith(b"\n"):
            return None
        try:
            said = json.loads(text)
        except ValueError:  # it is torn
            return None
        return Answer([Call(**call) for call in said["calls"]], said["inside"])

    def take(self) -> list[Call]:
        """Ask the worker, and wait for the answer."""
        self.ask()
        end = time.monotonic() + _WITHIN
        while (said := self.answered()) is None and time.monotonic() < end:
            time.sleep(0.02)
        return said.calls if said else []


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def alike(ranks: Iterable[tuple[Key, int]]) -> Iterable[tuple[Key, list[int]]]:
    """Return the ranks of each key, in the order in which the keys come first."""
    found: dict[Key, list[int]] = {}
    for key, rank in ranks:
        found.setdefault(key, []).append(rank)
    return found.items()


def lines(found: Mapping[int, Sequence[Call]]) -> list[str]:
    """Compare the ranks' calls: a line for each process group in which a rank waits.

    Args:
        found: each rank's calls, one for each of its groups; none for a rank that has not answered.
    """
    silent = [rank for rank, calls in found.items() if not calls]
    groups = _by_group(found).values()
    shown = [_line(calls, silent) for calls in groups if not all(call.is_over for call in calls.values())]
    shown.sort(key=lambda line: _MISSING not in line)  # else in the order in which the groups were made
    return shown[:_MOST] + [f"and {len(shown) - _MOST} more"] * (len(shown) > _MOST)


def behind(found: Mapping[int, Sequence[Call]]) -> list[int]:
    """Return the ranks for which others wait in a collective, and that wait in none themselves; none where the calls do not tell.

    Args:
        found: as in ``lines()``.
    """
    missing, waiting = set[int](), set[int]()
    for calls in _by_group(found).values():
        pending = {rank: call.number for rank, call in calls.items() if not call.is_over and call.number}
        waiting.update(pending)
        missing.update(_missing(calls, max(pending.values(), default=0)))
    return sorted(missing - waiting)


def _by_group(found: Mapping[int, Sequence[Call]]) -> dict[str, dict[int, Call]]:
    groups: dict[str, dict[int, Call]] = {}
    for rank, calls in sorted(found.items()):
        for call in calls:
            groups.setdefault(call.group, {})[rank] = call
    return groups


def _missing(calls: Mapping[int, Call], last: int) -> list[int]:
    """Return the ranks of a group that have not come to this collective."""
    return sorted(rank for rank, call in calls.items() if call.is_over and call.number < last)


def _line(calls: Mapping[int, Call], silent: Sequence[int]) -> str:
    """Describe one process group."""
    any_call = next(iter(calls.values()))
    members = f" of {ranks_text(sorted(any_call.ranks))}" if any_call.ranks else ""
    states = dict(alike(((call.is_over, call.number, call.name), rank) for rank, call in calls.items()))
    waiting = [key for key in states if not key[0] and key[1]]
    last = max((number for _, number, _ in waiting), default=0)
    missing = _missing(calls, last)
    parts = [f"{_state(ranks_text(states[key]), *key)}" for key in sorted(states)]
    if absent := [rank for rank in silent if not any_call.ranks or rank in any_call.ranks]:
        parts.append(f"no answer from {ranks_text(absent)}")
    if missing:
        parts.append(f"{_MISSING}{ranks_text(missing)}")
    elif len({name.partition(" ")[0] for _, number, name in waiting if number == last}) > 1:
        parts.append("these are different calls")
    return f"process group {any_call.title or any_call.group}{members}: {'; '.join(parts)}"


def _state(ranks: str, is_over: bool, number: int, name: str) -> str:
    if not number:
        return f"{ranks} in {name}" if name else f"{ranks} in no collective yet"
    return f"{ranks} {'done with' if is_over else 'in'} collective {number} ({name})"
