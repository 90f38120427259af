"""The launcher above a rank, as its guard watches it; and who a process is, for messages."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TextIO

from runner.launch.context import LaunchContext
from runner.launch.processes import launcher_process


def launcher_of(context: LaunchContext) -> int:
    """The process whose end leaves the ranks of this host without a launcher; 0 where there is none, or none is seen."""
    if not context.launcher.has_process:
        return 0
    if context.launcher.is_parent:
        return os.getppid()
    process = launcher_process()
    return process.pid if process is not None else 0


def end_of(process: int) -> int | None:
    """A file descriptor that can be read once the process has ended; None where the system has no such thing."""
    try:
        return os.pidfd_open(process) if process else None
    except (AttributeError, OSError):
        return None


def error_output_of(process: int) -> TextIO | None:
    """Where a process of this user writes its errors; None where that cannot be opened, or where the process would write
    over what is added: in a file that it does not append to."""
    path = f"/proc/{process}/fd/2"
    try:
        flags = int(re.findall(r"flags:\s*(\d+)", Path(f"/proc/{process}/fdinfo/2").read_text())[0], 8)
        if stat.S_ISREG(os.stat(path).st_mode) and not flags & os.O_APPEND:
            return None
        # (A pipe that nobody reads would keep a writer waiting.)
        return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK), "w")
    except (OSError, IndexError):
        return None


def described(process: int) -> str:
    """``bash (process 4711)``, as far as it can be seen from here."""
    try:
        return f"{Path(f'/proc/{process}/comm').read_text().strip()} (process {process})"
    except OSError:
        return f"process {process}" if process else "another process"
