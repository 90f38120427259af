"""The next start of a job, made while the one before still runs: its ranks have imported torch and wait."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from signal import SIGTERM

from runner.comm.standby import END, GO_ON
from runner.guard.group import die_with

_ENDING = 15.0  # seconds that it gets to end


class Standby:
    """At most one start that waits for a line on its standard input (the runner's --standby)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._left_out: list[str] = []

    def prepare(self, command: list[str], left_out: Sequence[str]) -> None:
        """Start the command. Where that fails there is none.

        Args:
            left_out: the hosts that it does not use.
        """
        self._left_out = list(left_out)
        with suppress(OSError):
            # It ends with this process, whatever ends that: Open MPI 5 does not pass the end of its input on.
            end_too = partial(die_with, os.getpid(), SIGTERM)
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=end_too)  # noqa: PLW1509 — this process has one thread

    def take(self, left_out: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Have it go on. Returns its launcher; None if there is none, or it has ended, or hosts are left out that it uses."""
        process = self._process
        if process is None or process.poll() is not None or self._left_out != list(left_out):
            self.end()
            return None
        _tell(process, GO_ON)
        self._process = None
        return process

    def end(self) -> None:
        """It is not needed; within half a minute."""
        process, self._process = self._process, None
        if process is None:
            return
        _tell(process, END)
        for stop in (process.terminate, process.kill):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING)
                return
            stop()


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin
    with suppress(OSError):  # it has ended
        process.stdin.write(line)
        process.stdin.close()
