"""A process may have any name, also one that is no text: the kernel cuts it after 15 bytes, inside of a character if need be."""

from __future__ import annotations

import subprocess
import sys

from runner.base.process_stat import process_stat
from runner.guard.hang.stacks import catches
from runner.guard.report.console import described

SETS_ITS_NAME = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, b"train fourteen\\xc3", 0, 0, 0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_name_that_is_no_text_ends_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SETS_ITS_NAME], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert described(process.pid) == f"train fourteen\ufffd (process {process.pid})"
        assert catches(process.pid, 15) is False
        stat = process_stat(process.pid)
        assert stat is not None
        assert stat.started.isdecimal()
        assert stat.memory > 1 << 20
        assert process.stdin is not None
        process.stdin.close()
