"""Waits for what another process or thread does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Seconds in which whatever a test waits for has happened: a limit only catches a hang, and no honest machine is so slow. But it
# is less than the 300 s that programs sleep which are to be ended.
LIMIT = 240.0


def poll_until(condition: Callable[[], T], within: float, what: str, process: subprocess.Popen[Any] | None = None) -> T:
    """Call a condition until its value is true, and return that.

    Args:
        within: seconds.
        what: is waited for, for the message.
        process: the one that makes it true.

    Raises:
        TimeoutError: it has not become true in time.
        RuntimeError: the process has ended before.
    """
    deadline = time.monotonic() + within
    while not (value := condition()):
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"ended with code {process.returncode} before {what}: {process.communicate()}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {what}")
        time.sleep(0.02)
    return value
