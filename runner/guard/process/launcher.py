"""The launcher process above a rank, which its guard watches; what is known of a process by its id."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from pathlib import Path
from typing import TextIO

from runner.base.process_stat import process_stat
from runner.launch.context import LaunchContext
from runner.launch.launcher_processes import launcher_process

_LOOK = 1.0  # seconds between two looks


def launcher_of(context: LaunchContext, parent: int) -> int:
    """The id of the process whose end leaves this host's ranks without a launcher; 0 if there is none or it is not seen.

    Args:
        parent: of the process that the launcher has started, when that began.
    """
    if not context.launcher.has_process:
        return 0
    started = process_stat(context.process)
    if context.launcher.is_parent or (started is not None and started.parent != parent):  # which has ended meanwhile
        return parent
    process = launcher_process(context.process)
    return process.pid if process is not None else 0


def end_of(process: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where it is not known (not Linux)."""
    if not process:
        return None
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        ended, alive = os.pipe()
        os.close(alive)
        return ended
    except (AttributeError, OSError):  # Linux before 5.3, as in RHEL 8, has none
        return _end_by_looking(process)


def _end_by_looking(process: int) -> int | None:
    """Watch a process's end, as ``end_of`` does, by a thread that looks every second."""
    started = _start_of(process)
    if started is None:  # it cannot be seen (hidepid), which is not its end
        return None
    ended, alive = os.pipe()

    def look() -> None:
        while _start_of(process) == started:
            time.sleep(_LOOK)
        os.write(alive, b"x")  # a close would not show: forked processes hold this end, too

    threading.Thread(target=look, name="launcher", daemon=True).start()
    return ended


def _start_of(process: int) -> str | None:
    """Return a process's start time, which tells it from a later one with its id; None if it has ended."""
    stat = process_stat(process)
    return None if stat is None or stat.has_ended else stat.started


def error_output_of(process: int) -> TextIO | None:
    """The standard error of another process of this user, opened to append; None if that is not possible, or if it is a
    file that the process does not append to itself, and so would overwrite what is added."""
    path = f"/proc/{process}/fd/2"
    try:
        flags = int(re.findall(r"flags:\s*(\d+)", Path(f"/proc/{process}/fdinfo/2").read_text())[0], 8)
        if stat.S_ISREG(os.stat(path).st_mode) and not flags & os.O_APPEND:
            return None
        # (O_NONBLOCK: opening or writing to a pipe that nobody reads would block.)
        return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK), "w")
    except (OSError, IndexError):
        return None


def described(process: int) -> str:
    """``bash (process 4711)``; without the name if it cannot be read."""
    try:
        name = Path(f"/proc/{process}/comm").read_text("utf-8", "replace").strip()
        return f"{name} (process {process})"
    except OSError:
        return f"process {process}" if process else "another process"


def catches(process: int, number: int) -> bool:
    """Whether a process has a handler for a signal (Linux; elsewhere it is taken to have one)."""
    try:
        caught = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process}/status").read_text("utf-8", "replace"))[0]
    except (OSError, IndexError):
        return True
    return bool(int(caught, 16) >> (number - 1) & 1)
