"""The worker's Unix process group: the processes that the worker has started end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from runner.base.errors import EXIT_FAILURE

if TYPE_CHECKING:
    import psutil

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36


class Group:
    """The worker and the processes that it has started. If the agent is killed, the rank's proxy ends them."""

    def __init__(self, *, is_own: bool) -> None:
        """``is_own``: the worker leads a group of its own; otherwise it is in its proxy's, on a terminal."""
        self.is_own, self._is_over = is_own, False

    def end_if_empty(self, worker: int) -> None:
        """After the worker's end: take the group as ended if no process is left. The kernel may give its number to another group then."""
        if self.is_own and not self._is_over:
            try:
                os.killpg(worker, 0)
            except (ProcessLookupError, PermissionError):
                self._is_over = True

    def end(self, worker: int, grace: float, importer: int = 0, others: Collection[int] = ()) -> None:
        """After the worker's end: send SIGTERM to the remaining processes, and SIGKILL after ``grace`` seconds.

        Args:
            importer: the worker's parent, which has adopted what it has left; of no group of its own only.
            others: workers of other ranks.
        """
        if not self.is_own:
            _end_children(grace, importer, others)
        elif worker and not self._is_over:
            _end_group(worker, grace)


def adopt_orphans() -> None:
    """Make descendants whose parent ends children of this process (Linux), so that they can be found and reaped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_process(name: str) -> str:
    """Give this process a name of 15 letters at most, which ps and top show (Linux). Returns the one before."""
    if sys.platform != "linux":
        return name
    with open("/proc/self/comm", encoding="utf-8", errors="surrogateescape") as file:
        before = file.read().rstrip("\n")
    ctypes.CDLL(None).prctl(_PR_SET_NAME, os.fsencode(name), 0, 0, 0)
    return before


def die_with(parent: int, by: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent, such as the agent, dies for any reason (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(EXIT_FAILURE)


def _end_group(group: int, grace: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace
        try:
            os.killpg(group, number)
            while time.monotonic() < deadline:
                os.killpg(group, 0)  # raises ProcessLookupError when the group is empty
                time.sleep(0.02)
        except (ProcessLookupError, PermissionError):
            return


def _end_children(grace: float, importer: int, others: Collection[int]) -> None:
    """End what a worker has left in a terminal's process group, and no other rank's worker."""
    import psutil

    left = []
    with contextlib.suppress(psutil.Error, OSError):
        own = os.getpgid(importer)
        for process in _without(psutil.Process(importer), others):
            with contextlib.suppress(psutil.Error, OSError):
                if os.getpgid(process.pid) == own:
                    process.terminate()
                    left.append(process)
    for process in psutil.wait_procs(left, grace)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _without(process: psutil.Process, others: Collection[int]) -> Iterator[psutil.Process]:
    """The descendants of a process, without these children and theirs."""
    for child in process.children():
        if child.pid not in others:
            yield child
            yield from _without(child, ())
