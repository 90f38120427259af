"""A rank's state in a file, for ``top`` and for whoever starts the job again: ``DIR/state/rank-00003.json``.

Where a host has a DIR of its own its ranks send their states to rank 0's guard, too, which writes them to its DIR.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.base.process_stat import process_stat
from runner.guard.board import ENDED, Board
from runner.guard.libraries import in_library
from runner.guard.messages import State
from runner.guard.rank_state import RankState, path_of
from runner.hardware.nvml import GpuMeter

_INTERVAL = 2.0  # seconds between two writings
_LAST = 2.0  # seconds that the last one may take
_LOOKING = 4.0  # seconds that rank 0's guard gets to mark its folder, before this one sends
_PER_SECOND = 500  # states that rank 0's guard is to take


class StateFile:
    """Written by a rank's guard, so also while its worker hangs. It is replaced as a whole.

    A thread does it: a file system or a driver that hangs does not stop the guard.
    """

    def __init__(self, folder: Path, board: Board, worker: int, **names: Any) -> None:
        """``names``: rank, size, local_rank and host."""
        self._path = path_of(folder, names["rank"])
        self._board, self._worker = board, worker
        self._facts = RankState(**names, pid=worker, started=time.time(), interval=_INTERVAL)
        self.gpu: GpuMeter | None = None
        self._used: tuple[float, float] | None = None  # processor seconds of the worker, and when
        self._end: dict[str, Any] = {}
        self._tell: Callable[[State], None] | None = None
        self._mark, self._look_at = self._path, 0.0
        self._is_over = False
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._work, name="state", daemon=True)
        self._thread.start()

    def send_by(self, tell: Callable[[State], None], mark: Path) -> None:
        """Send the state to rank 0's guard, too, where that has another folder: one without this file."""
        self._mark, self._look_at = mark, time.monotonic() + _LOOKING
        self._tell = tell  # last: the thread goes by it

    def stop(self) -> None:
        """Write no more; within two seconds."""
        self._is_over = True
        self._soon.set()
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
        progress = self._board.read()
        state = replace(
            self._facts,
            time=time.time(),
            phase=progress.phase,
            step=progress.step or None,
            steps=progress.steps or None,
            epoch=progress.epoch or None,
            epochs=progress.epochs or None,
            loss=None if math.isnan(progress.loss) else progress.loss,
            step_seconds=progress.step_seconds or None,
            own_seconds=progress.own_seconds or None,
            progress=time.time() - (time.monotonic() - progress.at) if progress.at else None,
        )
        state = replace(state, **more)
        draft = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):  # a folder that cannot be written is no reason to end a job
            draft.write_text(json.dumps(state.content()))
            os.replace(draft, self._path)
        if self._tell is not None and (time.monotonic() > self._look_at or self._end):
            self._send(self._tell, state)

    def _send(self, tell: Callable[[State], None], state: RankState) -> None:
        with contextlib.suppress(OSError):  # a folder that this user may not read is another one
            if self._mark.exists():
                self._tell = None  # rank 0's guard sees what is written here
                return
        interval = max(_INTERVAL, (self._facts.size or 1) / _PER_SECOND)
        self._look_at = time.monotonic() + interval - _INTERVAL / 2
        tell(State(replace(state, interval=interval).content()))

    def _usage(self) -> dict[str, Any]:
        """The worker's share of a core in percent, its memory (Linux), and its GPU's use."""
        stat = process_stat(self._worker)
        if stat is None:
            return {}
        with in_library():
            gpu = self.gpu.usage() if self.gpu else {}
        now, seconds = time.monotonic(), stat.processor_seconds
        before, self._used = self._used, (seconds, now)
        cpu = None if before is None or now <= before[1] else 100 * (seconds - before[0]) / (now - before[1])
        return {"cpu": cpu, "memory": stat.memory} | gpu
