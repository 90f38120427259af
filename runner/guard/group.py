"""The worker's Unix process group: the processes that the worker has started end with it, even if the guard dies first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runner.base.errors import EXIT_FAILURE
from runner.base.locks import remove_left

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NUMBER = struct.Struct("=i")  # a process id
_DONE = _NUMBER.pack(0)
_DYING = 10.0  # seconds that a killed worker may take to its end


class Group:
    """The worker and the processes that it has started.

    If the worker has a process group of its own, a second process (the sweeper) watches the guard: a launcher that kills
    only the guard would leave the group behind, and the worker's locks. (The kernel ends the worker itself, see ``die_with``.)
    """

    def __init__(self, *, is_own: bool, but: Sequence[int], locks: Callable[[], list[str]] = list) -> None:
        """Call in the guard, right before the fork: the sweeper is there before the worker starts anything.

        Args:
            is_own: the worker leads a group of its own; otherwise it is in the guard's, on a terminal.
            but: file descriptors that only the guard may hold.
            locks: those that the worker has held (runner/base/locks.py).

        Raises:
            OSError: there is no room for one more process.
        """
        self.is_own, self._is_over = is_own, False
        self._sweeper = _start_sweeper(but, locks) if is_own else None

    @property
    def own_ends(self) -> list[int]:
        """The file descriptors that only the guard may hold."""
        return [] if self._sweeper is None else [self._sweeper]

    def lead(self) -> None:
        """Call in the worker: it leads a group of its own, and tells the sweeper."""
        os.setpgid(0, 0)
        if self._sweeper is not None:
            with contextlib.suppress(OSError):  # it was killed: no reason to end the job
                os.write(self._sweeper, _NUMBER.pack(os.getpid()))
            os.close(self._sweeper)

    def end_if_empty(self, worker: int) -> None:
        """After the worker's end: take the group as ended if no process is left. The kernel may give its number to another group then."""
        if self.is_own and not self._is_over:
            try:
                os.killpg(worker, 0)
            except (ProcessLookupError, PermissionError):
                self._is_over = True
                self.close()

    def end(self, worker: int, grace: float) -> None:
        """After the worker's end: send SIGTERM to the remaining processes, and SIGKILL after ``grace`` seconds."""
        if not self.is_own:
            _end_children(grace)
        elif not self._is_over:
            _end_group(worker, grace)
        self.close()

    def close(self) -> None:
        """End the sweeper: the group has ended, or there is none."""
        if self._sweeper is not None:
            with contextlib.suppress(OSError):
                os.write(self._sweeper, _DONE)
            os.close(self._sweeper)
            self._sweeper = None


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process (Linux), so that they can be found and reaped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int, by: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent, such as the guard, dies for any reason (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(EXIT_FAILURE)


def _start_sweeper(but: Sequence[int], locks: Callable[[], list[str]]) -> int:
    """Fork a process that kills the worker's group if this one ends before it says that it has done so.

    Returns:
        The pipe on which the worker writes its process id, and then the guard that it is done.
    """
    pipe_out, pipe_in = os.pipe()
    try:
        process = os.fork()
    except OSError:
        os.close(pipe_out)
        os.close(pipe_in)
        raise
    if process:
        os.close(pipe_out)
        return pipe_in
    try:
        os.close(pipe_in)
        _sweep(pipe_out, but, locks)
    finally:  # whatever it raises: this process must not go on as a guard
        os._exit(0)


def _sweep(pipe: int, but: Sequence[int], locks: Callable[[], list[str]]) -> None:
    """Wait for the worker's process id, then for the guard; kill the group, and remove the locks, if the guard ends without a word."""
    os.setsid()  # so that signals to the guard's group do not reach it
    nothing = os.open(os.devnull, os.O_RDWR)
    # A launcher waits until no process holds its pipes. One that it has closed may have given its number to this pipe.
    for descriptor in {0, 1, 2, *but} - {pipe}:
        os.dup2(nothing, descriptor)
    group = os.read(pipe, _NUMBER.size)
    if group not in (b"", _DONE) and os.read(pipe, _NUMBER.size) != _DONE:
        (worker,) = _NUMBER.unpack(group)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGKILL)
        remove_left([Path(lock) for lock in locks()], worker, _DYING)


def _end_group(group: int, grace: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace
        try:
            os.killpg(group, number)
            while time.monotonic() < deadline:
                _reap()
                os.killpg(group, 0)  # raises ProcessLookupError when the group is empty
                time.sleep(0.02)
        except (ProcessLookupError, PermissionError):
            return


def _end_children(grace: float) -> None:
    """The same where the guard itself is in the group: end only the guard's descendants that are in it."""
    import psutil

    own = os.getpgrp()
    left = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == own:
                process.terminate()
                left.append(process)
    for process in psutil.wait_procs(left, grace)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
