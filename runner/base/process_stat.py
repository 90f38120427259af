"""The kernel's facts about another process (Linux). Without psutil, which takes 50 ms to import and twice as long per reading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessStat(NamedTuple):
    """proc(5), /proc/pid/stat."""

    state: str  # R, S, D, T, Z, …
    parent: int
    processor_seconds: float  # of all its threads, in user and kernel mode
    started: str  # in ticks since boot, which tells it from a later process of its number
    memory: int  # bytes that are resident

    @property
    def has_ended(self) -> bool:
        """Whether only its parent has still to take its exit code."""
        return self.state in ("Z", "X")


def process_stat(process: int) -> ProcessStat | None:
    """Return the facts about a process; None if it does not run, or may not be seen (hidepid)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    seconds = (int(fields[11]) + int(fields[12])) / _TICKS
    return ProcessStat(
        state=fields[0],
        parent=int(fields[1]),
        processor_seconds=seconds,
        started=fields[19],
        memory=int(fields[21]) * _PAGE,
    )
