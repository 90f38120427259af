"""A rank's states over time, for the page of ``report``: ``DIR/state/rank-00003.jsonl``, a line per state.

The time between two lines is a fixed part of the time so far, so the lines of a long run are few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIELDS = ("time", "phase", "step", "step_seconds", "own_seconds", "data_seconds", "cpu", "memory", "gpu", "gpu_memory")
_PART = 1 / 128  # of the time so far, between two lines: some 900 lines in a day, 1,100 in a week


class History:
    """The lines about one rank. Their file is replaced as a whole, so that no line is cut off."""

    def __init__(self) -> None:
        self._text = ""
        self._began = self._next = 0.0  # Unix time

    def add(self, state: Mapping[str, Any], *, is_last: bool = False) -> str | None:
        """Add a line for this state if one is due. Return the new content of the file, or None if it is unchanged."""
        now = float(state["time"])
        if now < self._next and not is_last:
            return None
        self._began = self._began or now
        self._next = now + _PART * (now - self._began)
        known = {name: state[name] for name in FIELDS if state.get(name) is not None}
        self._text += json.dumps(known) + "\n"
        return self._text


def path_of_history(state: Path) -> Path:
    """Return the file beside that of a rank's state."""
    return state.with_suffix(".jsonl")
