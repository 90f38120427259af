"""The state that a rank leaves in the folder of ``--log-dir``, a JSON file that its guard replaces every few seconds.

The guard writes it (state.py); ``top`` and ``supervise`` read it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from runner.guard.report.board import ENDED

FORMAT = 1  # of the file
FOLDER = "state"  # in the folder of a job
# A rank is missing if it has not written its state for so many seconds or intervals, whichever is more.
SILENT_SECONDS = 10.0
SILENT_INTERVALS = 3
_NAME = re.compile(r"rank-(\d+)\.json")


@dataclass(frozen=True, kw_only=True)
class RankState:
    """The state of a rank as its file has it. None: unknown. Times are Unix times by the clock of the rank's host."""

    rank: int
    size: int | None = None
    host: str | None = None
    addresses: tuple[str, ...] = ()  # of the host
    local_rank: int | None = None
    pid: int | None = None
    time: float | None = None  # of writing
    started: float | None = None
    interval: float | None = None  # seconds between two writings
    phase: str | None = None  # one of PHASES
    step: int | None = None
    steps: int | None = None  # of the whole training
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None  # may be NaN or infinite
    step_seconds: float | None = None
    own_seconds: float | None = None  # of a step, in which the rank waits for no other
    data_seconds: float | None = None  # of those, in which it waits for its batch
    progress: float | None = None  # the time of the last progress
    cpu: float | None = None  # percent of one core
    memory: int | None = None  # bytes
    gpu: float | None = None  # percent
    gpu_memory: int | None = None  # bytes
    exit_code: int | None = None
    what: str | None = None  # is wrong
    ended_by: str | None = None  # the signal, or that by which it was asked to save; none where memory was lacking
    lost: int | None = None  # the rank whose guard went first

    def content(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"format": FORMAT} | asdict(self)

    @property
    def has_ended(self) -> bool:
        return self.phase == ENDED or self.exit_code is not None


def path_of(folder: Path, rank: int) -> Path:
    """A rank's file in a job's folder."""
    return folder / FOLDER / f"rank-{rank:05d}.json"


def read_states(folder: Path) -> list[RankState]:
    """The states in a job's folder, by rank. A file that cannot be read is a state in which all is unknown."""
    states = []
    for path in (folder / FOLDER).glob("rank-*.json"):
        if name := _NAME.fullmatch(path.name):
            rank = int(name[1])
            try:
                state = parse(rank, path.read_text(encoding="utf-8"))
                states.append(state if state.time is not None else replace(state, time=path.stat().st_mtime))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                states.append(RankState(rank=rank, what=f"{path.name} cannot be read: {error}"))
    return sorted(states, key=lambda state: state.rank)


def parse(rank: int, text: str) -> RankState:
    """A state from its file's text. What is missing, or not of its type, is unknown.

    Raises:
        ValueError: it is not a JSON object, or a later runner has written it.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    if isinstance(written := found.get("format"), int) and written > FORMAT:
        raise ValueError(f"it is of format {written}, and this runner reads {FORMAT}; update the runner")
    return RankState(rank=rank, **{name: read(found.get(name)) for name, read in _FIELDS.items()})


def _text(value: object) -> str | None:
    """Return a text as one line without control characters: an error message may have colours."""
    if not isinstance(value, str):
        return None
    return " ".join("".join(letter if letter.isprintable() else " " for letter in value).split())


def _texts(value: object) -> tuple[str, ...]:
    return tuple(filter(None, map(_text, value))) if isinstance(value, list) else ()


def _any_number(value: object) -> float | None:
    with suppress(OverflowError):
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None


def _number(value: object) -> float | None:
    number = _any_number(value)
    return number if number is not None and math.isfinite(number) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


_READ = {"str | None": _text, "int | None": _whole, "float | None": _number, "tuple[str, ...]": _texts}
_FIELDS: dict[str, Callable[[object], Any]] = {
    **{field.name: _READ[str(field.type)] for field in fields(RankState) if field.name != "rank"},
    "loss": _any_number,
}
