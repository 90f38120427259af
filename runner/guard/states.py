"""The states of a job's ranks in the folder of ``--log-dir``, also where each host has a folder of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from runner.guard.board import Board
from runner.guard.files import Files
from runner.guard.line import Address
from runner.guard.messages import Message, State
from runner.guard.rank_state import FOLDER, path_of
from runner.guard.settings import Watched
from runner.guard.state import StateFile
from runner.hardware.nvml import GpuMeter
from runner.launch.job_entry import written_entry

_WRITING = 2.0  # seconds for removing the job's entry


class States:
    """Those of one rank's workers, one after the other; at rank 0 also the others', where they come by the guards' line."""

    def __init__(self, watched: Watched, files: Files) -> None:
        """``watched`` must have a log folder."""
        assert watched.log_folder
        self._watched, self._files, self._folder = watched, files, watched.log_folder
        self._own: StateFile | None = None
        self._tell: Callable[[Message], None] | None = None
        self._mark: Path | None = None  # a file that rank 0's guard makes: who sees it shares the folder
        self.come_by_line = False
        # Apart from the other files: the home folder may hang where the log folder does not.
        self._entry = Files(None) if watched.job_entry else None
        if self._entry and watched.job_entry:
            self._entry.put(watched.job_entry, written_entry(str(watched.names.get("host")), self._folder))

    def begin(self, board: Board, process: int) -> None:
        """Turn to a new worker."""
        if self._own:
            self._own.stop()
        self._own = StateFile(self._folder, board, process, **self._watched.names)
        self._share()

    def join(self, tell: Callable[[Message], None], address: Address) -> None:
        """The guards' line is there. ``tell``: its function."""
        self._tell = tell
        start = f"{address.key} {address.port}"  # another start of the job has another port
        self._mark = self._folder / FOLDER / f".folder-{hashlib.sha256(start.encode()).hexdigest()[:16]}"
        self._share()

    def take(self, rank: int, state: State) -> None:
        """Write the state of a rank that has another folder."""
        self.come_by_line = True
        self._files.put(path_of(self._folder, rank), json.dumps(state.fields))

    def use_gpu(self, gpu: GpuMeter) -> None:
        """Write the use of this GPU, too."""
        if self._own:
            self._own.gpu = gpu

    def lost(self, rank: int) -> None:
        """Write that another rank's guard is gone."""
        if self._own:
            self._own.lost(rank)

    def note(self, what: str, ended_by: str) -> None:
        """Write that a signal is to end this rank."""
        if self._own:
            self._own.note(what, ended_by)

    def end(self, code: int, what: str, ended_by: str | None) -> None:
        """Write how this rank has ended; within two seconds."""
        if self._own:
            self._own.end(code, what, ended_by)

    def close(self) -> None:
        """Remove the job's entry and the folder's mark; within two seconds."""
        if self._entry and self._watched.job_entry:
            self._entry.put(self._watched.job_entry, None)
            self._entry.close(_WRITING)
        if self._mark and self._watched.is_middle:
            self._files.put(self._mark, None)

    def _share(self) -> None:
        """Mark the folder in which rank 0's guard sees states, or have this rank's sent to it if that is another one."""
        if not (self._tell and self._mark and self._own):
            return
        if self._watched.is_middle:
            self._files.put(self._mark, "")
        else:
            self._own.send_by(self._tell, self._mark)
