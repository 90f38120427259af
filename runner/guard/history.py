"""How a rank was over time, for a report about the run: ``DIR/state/rank-00003.jsonl``, lines with some fields of its state.

The file stays small: where it has as many lines as it may, every other one is left out, and half as many are added from then on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1  # of the lines
FIELDS = ("time", "phase", "step", "step_seconds", "own_seconds", "data_seconds")
FIELDS_OF_USE = ("cpu", "memory", "gpu", "gpu_memory", "gpu_energy")
MOST = 512  # lines
_NEW = 16  # the file is written again once one in so many lines is new: some 2 kB per line, however long it is


class History:
    """Of one rank. It is written as a whole, so that no line is cut off."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._every = 1  # states per line
        self._states = self._new = 0

    def add(self, state: Mapping[str, Any], *, is_last: bool = False) -> str | None:
        """Take the fields of a state. Returns the file's content if it is to be written now."""
        if self._states % self._every == 0 or is_last:
            self._lines.append(_line(state))
            self._new += 1
        self._states += 1
        if len(self._lines) >= MOST:
            del self._lines[1::2]
            self._every *= 2
        if not is_last and self._new * _NEW < len(self._lines):
            return None
        self._new = 0
        return "".join(self._lines)


def path_of_history(state: Path) -> Path:
    """The file beside that of a rank's state."""
    return state.with_suffix(".jsonl")


def _line(state: Mapping[str, Any]) -> str:
    """What is known, as JSON, which has no NaN and no infinity."""
    known = {name: _short(state.get(name)) for name in (*FIELDS, *FIELDS_OF_USE)}
    return json.dumps({"format": FORMAT} | {name: one for name, one in known.items() if one is not None}) + "\n"


def _short(value: Any) -> Any:
    """Four digits of a number; of one from 1000 on, such as a time, three places."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return round(value, 3) if abs(value) >= 1000 else float(f"{value:.4g}")
