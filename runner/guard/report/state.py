"""A rank's state in a file, for ``top`` and for whoever starts the job again: ``DIR/state/rank-00003.json``."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.base.process_stat import process_stat
from runner.guard.process.forks import in_library
from runner.guard.report.board import ENDED, Board
from runner.guard.report.history import History, path_of_history
from runner.guard.report.rank_state import RankState, path_of
from runner.guard.settings import Watched
from runner.hardware.nvml import GpuMeter

_INTERVAL = 2.0  # seconds between two writings
_LAST = 2.0  # seconds that the last one may take
_NUMBERS = (
    "step",
    "steps",
    "epoch",
    "epochs",
    "step_seconds",
    "own_seconds",
    "data_seconds",
)  # of Progress: 0 is unknown


class StateFile:
    """The state file of one rank. Its guard writes the file, so also while its worker hangs.

    A thread replaces the file as a whole: a file system or a driver that hangs does not stop the guard.
    """

    def __init__(self, watched: Watched) -> None:
        """``watched`` must have a log folder."""
        assert watched.log_folder
        self._names = watched.names
        self._facts = RankState(**watched.names)
        self._path = path_of(watched.log_folder, self._facts.rank)
        self._history = History()
        self._board: Board | None = None  # of the worker that runs
        self.gpu: GpuMeter | None = None
        self._used: tuple[int, float, float] | None = None  # a worker, its processor seconds, and when
        self._end: dict[str, Any] = {}
        self._is_over = False
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._work, name="state", daemon=True)

    def begin(self, board: Board, process: int) -> None:
        """Turn to a new worker."""
        is_first = self._board is None
        self._facts = RankState(**self._names, pid=process, started=time.time(), interval=_INTERVAL)
        self._board, self.gpu = board, None
        self._thread.start() if is_first else self._soon.set()

    def stop(self) -> None:
        """Write no more; within two seconds."""
        self._is_over = True
        self._soon.set()
        if self._board:
            self._thread.join(_LAST)

    def lost(self, rank: int) -> None:
        """Write that another rank's guard is gone; at once, as the launcher may end this one next."""
        self._facts = replace(self._facts, lost=rank)
        self._soon.set()

    def note(self, what: str, ended_by: str) -> None:
        """Write that a signal is to end the rank; at once, as the launcher may kill this guard before there is more to say."""
        self._facts = replace(self._facts, what=what, ended_by=ended_by)
        self._soon.set()

    def end(self, code: int, what: str, ended_by: str | None = None) -> None:
        """Write how the rank has ended, and by which signal; within two seconds."""
        self._end = {"phase": ENDED, "exit_code": code, "what": what, "ended_by": ended_by}
        self.stop()

    def _work(self) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        while not self._is_over:
            self._write(self._usage())
            self._soon.wait(_INTERVAL)
            self._soon.clear()
        if self._end:
            self._write(self._end)

    def _write(self, more: dict[str, Any]) -> None:
        assert self._board is not None
        progress = self._board.read()
        numbers: dict[str, Any] = {name: getattr(progress, name) or None for name in _NUMBERS}
        state = replace(
            self._facts,
            time=time.time(),
            phase=progress.phase,
            loss=None if math.isnan(progress.loss) else progress.loss,
            progress=time.time() - (time.monotonic() - progress.at) if progress.at else None,
            **numbers,
        )
        state = replace(state, **more)
        content = state.content()
        with contextlib.suppress(OSError):  # a folder that cannot be written is no reason to end a job
            _put(self._path, json.dumps(content))
            if text := self._history.add(content, is_last=state.exit_code is not None):
                _put(path_of_history(self._path), text)

    def _usage(self) -> dict[str, Any]:
        """The worker's share of a core in percent, its memory (Linux), and its GPU's use."""
        worker = self._facts.pid or 0
        if (stat := process_stat(worker)) is None:
            return {}
        with in_library():
            gpu = self.gpu.usage() if self.gpu else {}
        now, seconds, last = time.monotonic(), stat.processor_seconds, self._used
        self._used = worker, seconds, now
        is_known = last is not None and last[0] == worker and now > last[2]
        cpu = 100 * (seconds - last[1]) / (now - last[2]) if last and is_known else None
        return {"cpu": cpu, "memory": stat.memory} | gpu


def _put(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    os.replace(draft, path)
