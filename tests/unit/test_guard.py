"""The guard passes exit codes and signals on, and bounds waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

BEGINNING = """
import os, signal, sys, time
{first}
from runner.guard.watch import start_worker
lifeline = start_worker("rank 0 of 1 on host here", {limit}, lambda code: f"nobody came ({{code}})")
print("worker", os.getpid(), flush=True)
"""


@contextmanager
def guarded(body: str, limit: float = 60.0, first: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process under guard that runs this code as its worker; gone, with its worker, when the context ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGINNING.format(limit=limit, first=first) + body],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def worker_of(process: subprocess.Popen[str]) -> psutil.Process:
    assert process.stdout is not None
    return psutil.Process(int(process.stdout.readline().split()[1]))


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_codes_pass_through(code: int) -> None:
    with guarded(f"sys.exit({code})") as process:
        process.communicate(timeout=20)
        assert process.returncode == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_deadly_signal_is_named(name: str) -> None:
    number = signal.Signals[name]
    with guarded(f"os.kill(os.getpid(), {int(number)})") as process:
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 128 + number
        assert f"rank 0 of 1 on host here: killed by {name}" in errors


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT"])
def test_signals_are_passed_on(name: str) -> None:
    body = f"signal.signal(signal.{name}, lambda *_: os._exit(42))\nprint('ready', flush=True)\ntime.sleep(60)"
    with guarded(body) as process:
        worker_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        assert process.wait(timeout=20) == 42


def test_the_worker_dies_with_its_guard() -> None:
    with guarded("time.sleep(60)") as process:
        worker = worker_of(process)
        process.kill()
        process.wait()
        assert worker.wait(timeout=10) is not None or not worker.is_running()


def test_a_wait_that_the_worker_cannot_bound_is_bounded() -> None:
    with guarded("time.sleep(60)", limit=0.5) as process:
        start = time.monotonic()
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "rank 0 of 1 on host here: nobody came (None)" in errors
        assert time.monotonic() - start < 15


def test_the_clock_stops_when_the_ranks_have_met() -> None:
    with guarded("lifeline.met(); time.sleep(1.5); sys.exit(5)", limit=0.7) as process:
        process.communicate(timeout=20)
        assert process.returncode == 5


def test_a_library_that_ends_the_worker_before_the_meeting_is_told() -> None:
    with guarded("os._exit(16)") as process:
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 16
        assert "rank 0 of 1 on host here: nobody came (16)" in errors
    with guarded("lifeline.met(); os._exit(16)") as process:
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 16
        assert errors == ""


def test_the_last_word_of_a_worker_that_ended_before_its_guard_looked_counts() -> None:
    slow = "os.register_at_fork(after_in_parent=lambda: time.sleep(1))"
    with guarded("lifeline.met(); os._exit(16)", first=slow) as process:
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (16, "")
    with guarded("lifeline.failed(9); os.kill(os.getpid(), 11)", first=slow) as process:
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (9, "")


def test_a_failed_worker_that_hangs_is_ended_with_its_code() -> None:
    with guarded("lifeline.failed(9); time.sleep(60)") as process:
        process.communicate(timeout=20)
        assert process.returncode == 9


def test_children_of_the_worker_that_outlive_it_do_not_hold_the_guard() -> None:
    with guarded("pid = os.fork()\nif pid == 0: time.sleep(30)\nprint(pid, flush=True)\nos._exit(3)") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("worker")
        child = int(process.stdout.readline())
        assert process.wait(timeout=10) == 3
        os.kill(child, signal.SIGKILL)
