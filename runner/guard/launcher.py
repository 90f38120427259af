"""The launcher process above a rank, which its guard watches; what is known of a process by its id."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TextIO

from runner.launch.context import LaunchContext
from runner.launch.processes import launcher_process


def launcher_of(context: LaunchContext) -> int:
    """The id of the process whose end leaves this host's ranks without a launcher; 0 if there is none or it is not seen."""
    if not context.launcher.has_process:
        return 0
    if context.launcher.is_parent:
        return os.getppid()
    process = launcher_process()
    return process.pid if process is not None else 0


def end_of(process: int) -> int | None:
    """A file descriptor that becomes readable when the process ends; None where the system has none (not Linux)."""
    try:
        return os.pidfd_open(process) if process else None
    except (AttributeError, OSError):
        return None


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
        return f"{Path(f'/proc/{process}/comm').read_text().strip()} (process {process})"
    except OSError:
        return f"process {process}" if process else "another process"


def catches(process: int, number: int) -> bool:
    """Whether a process has a handler for a signal (Linux; elsewhere it is taken to have one)."""
    try:
        caught = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process}/status").read_text())[0]
    except (OSError, IndexError):
        return True
    return bool(int(caught, 16) >> (number - 1) & 1)
