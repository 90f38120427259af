"""A rank's state in a file, for ``top`` and for whoever starts the job again: ``DIR/state/rank-00003.json``.

Where a host has a DIR of its own its ranks send their states to rank 0's guard, too, which writes them to its DIR.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from runner.guard.files import Files
from runner.guard.history import History, path_of_history
from runner.guard.libraries import in_library
from runner.guard.link import Address
from runner.guard.messages import State
from runner.guard.rank_state import FOLDER, RankState, path_of
from runner.guard.settings import Watched
from runner.hardware.nvml import GpuMeter
from runner.launch.job_entry import written_entry

_INTERVAL = 2.0  # seconds between two writings
_LAST = 2.0  # seconds that the last one may take, and the removal of the job's entry
_LOOKING = 4.0  # seconds that rank 0's guard gets to mark its folder, before this one sends
_PER_SECOND = 500  # states that rank 0's guard is to take
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
    """Of one rank: its guard writes it, so also while its worker hangs; at rank 0 the others', too, where they come by the link.

    It is replaced as a whole. A thread does it: a file system or a driver that hangs does not stop the guard.
    """

    def __init__(self, watched: Watched, files: Files) -> None:
        """``watched`` must have a log folder."""
        assert watched.log_folder
        self._watched, self._files, self._folder = watched, files, watched.log_folder
        self._facts = RankState(**watched.names)
        self._path = path_of(self._folder, self._facts.rank)
        self._histories: dict[int, History] = {}  # by rank: this one's, and those of ranks that have another folder
        self._board: Board | None = None  # of the worker that runs
        self.gpu: GpuMeter | None = None
        self._used: tuple[int, float, float] | None = None  # a worker, its processor seconds, and when
        self._end: dict[str, Any] = {}
        self._tell: Callable[[State], None] | None = None
        self._mark: Path | None = None  # a file that rank 0's guard makes: who sees it shares the folder
        self._look_at = 0.0
        self.come_by_line = False
        self._is_over = False
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._work, name="state", daemon=True)
        # Apart from the other files: the home folder may hang where the log folder does not.
        self._entry = Files(None) if watched.job_entry else None
        if self._entry and watched.job_entry:
            self._entry.put(watched.job_entry, written_entry(str(watched.names.get("host")), self._folder))

    def begin(self, board: Board, process: int) -> None:
        """Turn to a new worker."""
        is_first = self._board is None
        self._facts = RankState(**self._watched.names, pid=process, started=time.time(), interval=_INTERVAL)
        self._board, self.gpu = board, None
        self._thread.start() if is_first else self._soon.set()

    def join(self, tell: Callable[[State], None], address: Address) -> None:
        """The guards' link is there: mark rank 0's folder, or have the state sent by ``tell`` where that is another one."""
        start = f"{address.key} {address.port}"  # another start of the job has another port
        self._mark = self._folder / FOLDER / f".folder-{hashlib.sha256(start.encode()).hexdigest()[:16]}"
        if self._watched.is_hub:
            self._files.put(self._mark, "")
        else:
            self._look_at = time.monotonic() + _LOOKING
            self._tell = tell  # last: the thread goes by it

    def take(self, rank: int, state: State) -> None:
        """Write the state of a rank that has another folder."""
        self.come_by_line = True
        path = path_of(self._folder, rank)
        self._files.put(path, json.dumps(state.fields))
        if text := self._history(rank, state.fields):
            self._files.put(path_of_history(path), text)

    def stop(self) -> None:
        """Write no more; within two seconds."""
        self._is_over = True
        self._soon.set()
        if self._board:
            self._thread.join(_LAST)

    def close(self) -> None:
        """Remove the job's entry and the folder's mark; within two seconds."""
        if self._entry and self._watched.job_entry:
            self._entry.put(self._watched.job_entry, None)
            self._entry.close(_LAST)
        if self._mark and self._watched.is_hub:
            self._files.put(self._mark, None)

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
            if text := self._history(state.rank, content):
                _put(path_of_history(self._path), text)
        if self._tell is not None and (time.monotonic() > self._look_at or self._end):
            self._send(self._tell, state)

    def _history(self, rank: int, state: dict[str, Any]) -> str | None:
        """Add a state to a rank's history. Returns its content if it is to be written now."""
        is_last = state.get("exit_code") is not None
        return self._histories.setdefault(rank, History()).add(state, is_last=is_last)

    def _send(self, tell: Callable[[State], None], state: RankState) -> None:
        with contextlib.suppress(OSError):  # a folder that this user may not read is another one
            if self._mark and self._mark.exists():
                self._tell = None  # rank 0's guard sees what is written here
                return
        interval = max(_INTERVAL, (self._facts.size or 1) / _PER_SECOND)
        self._look_at = time.monotonic() + interval - _INTERVAL / 2
        tell(State(replace(state, interval=interval).content()))

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
