"""How a script is told to save (``--on-preempt``): by a signal, or by a file that appears."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

from runner.guard.launcher import catches
from runner.guard.settings import Watched
from runner.guard.worker import Worker

_ASK_TO_SAVE = (signal.SIGTERM, signal.SIGUSR1)


class Notice:
    """The notice to save that a script gets at a signal, and before its time limit."""

    def __init__(self, watched: Watched, rank: int) -> None:
        """Call before the fork: a file that an earlier job has left is removed."""
        self._way = watched.notice
        self._told = 0  # the worker that was told before its time limit
        self._at = None if watched.notice_within is None else time.monotonic() + watched.notice_within
        if rank == 0 and isinstance(self._way, Path):
            with contextlib.suppress(OSError):
                self._way.unlink()

    def is_due(self, worker: Worker) -> bool:
        """Whether the time limit is near, and the script listens. True once for each worker."""
        is_near = self._at is not None and time.monotonic() >= self._at
        is_due = is_near and worker.process != self._told and self._is_handled_by(worker)
        if is_due:
            self._told = worker.process
        return is_due

    def is_asked_for_by(self, number: int, worker: Worker) -> bool:
        """Whether this signal is one at which the script is to save."""
        return number in _ASK_TO_SAVE and self._is_handled_by(worker)

    def is_by(self, number: int) -> bool:
        """Whether the notice is this signal."""
        return number == self._way

    def give(self, worker: Worker) -> str:
        """Tell a script to save. Returns what has gone wrong, or ""."""
        if isinstance(self._way, Path):
            try:
                self._way.touch()
            except OSError as error:
                return f"--on-preempt: cannot create {self._way}: {error.strerror}"
        elif self._way is not None:
            worker.signal(self._way)
        return ""

    def _is_handled_by(self, worker: Worker) -> bool:
        """Whether the script listens by now: a signal without a handler would end it."""
        way = self._way
        return bool(worker.rendezvous_at) and (
            isinstance(way, Path) or (way is not None and catches(worker.process, way))
        )
