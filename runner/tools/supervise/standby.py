"""The next start of a job, made while the one before still runs: its ranks have imported torch and wait."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGTERM

from runner.guard.group import die_with
from runner.guard.rank_state import read_states
from runner.torchrun.standby import END, START

_ENDING = 10.0  # seconds that it gets to end, before SIGTERM and before SIGKILL


class Standby:
    """At most one start that waits for a line on its standard input (the runner's --standby)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder, self._left_out = Path(), [""]

    def prepare(self, command: list[str], folder: Path, left_out: Sequence[str]) -> None:
        """Start the command.

        Args:
            folder: where its ranks write their states.
            left_out: the hosts that it does not use.

        Raises:
            OSError: it cannot be started; there is none then.
        """
        self._folder, self._left_out = folder, list(left_out)
        # It ends with this process, whatever ends that: Open MPI 5 does not pass the end of its input on.
        end_too = partial(die_with, os.getpid(), SIGTERM)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=end_too)  # noqa: PLW1509 — this process has one thread

    def take(self, left_out: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Have it continue. Returns its launcher; None if there is none, or a rank of it has ended, or other hosts are left out now."""
        process = self._process
        if process is None or process.poll() is not None or self._left_out != list(left_out) or self._has_lost_ranks():
            self.end()
            return None
        _send(process, START)
        self._process = None
        return process

    def end(self) -> None:
        """It is not needed; within some seconds. Nothing is left of its folder."""
        process, self._process = self._process, None
        if process is None:
            return
        _send(process, END)
        for stop in (process.terminate, process.kill):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDING)
                break
            stop()
        process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _has_lost_ranks(self) -> bool:
        """Its launcher may wait for a lost host for minutes."""
        return any(state.has_ended or state.lost is not None for state in read_states(self._folder))


def _send(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin
    with suppress(OSError):  # it has ended
        process.stdin.write(line.encode())
        process.stdin.close()
