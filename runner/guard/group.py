"""The worker's Unix process group: the processes that the worker has started end with it, even if the guard dies first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

from runner.errors import EXIT_FAILURE

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Group:
    """The worker and the processes that it has started.

    If the worker has a process group of its own, a second process (the sweeper) watches the guard: a launcher that kills
    only the guard would leave the group behind. (The kernel ends the worker itself, see ``die_with``.)
    """

    def __init__(self, worker: int, *, is_own: bool, but: tuple[int, ...]) -> None:
        """Call in the guard, right after the fork.

        Args:
            is_own: the worker leads a group of its own; otherwise it is in the guard's, on a terminal.
            but: file descriptors that only the guard may hold.
        """
        self._worker, self.is_own = worker, is_own
        if is_own:
            with contextlib.suppress(OSError):  # the worker does the same; one of the two is first
                os.setpgid(worker, worker)
            self._sweeper = _start_sweeper(worker, but)

    def end(self, grace: float) -> None:
        """After the worker's end: send SIGTERM to the remaining processes, and SIGKILL after ``grace`` seconds."""
        if self.is_own:
            _end_group(self._worker, grace)
            with contextlib.suppress(OSError):
                os.write(self._sweeper, b"done")
            os.close(self._sweeper)
        else:
            _end_children(grace)


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


def _start_sweeper(group: int, but: tuple[int, ...]) -> int:
    """Fork a process that kills the group if this one ends before it writes to the pipe. Returns the pipe."""
    pipe_out, pipe_in = os.pipe()
    if os.fork():
        os.close(pipe_out)
        return pipe_in
    os.setsid()  # so that signals to the guard's group do not reach it
    os.close(pipe_in)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2, *but):  # a launcher waits until no process holds its pipes
        os.dup2(nothing, descriptor)
    if not os.read(pipe_out, 4):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    os._exit(0)


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
