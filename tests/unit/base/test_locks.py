"""Locks: one run at a time, whatever becomes of its process. The others are real processes; one of another host is only a file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.base import locks
from runner.base.errors import UsageError
from runner.base.locks import held
from tests.launching import ROOT

HOLDS = """
import sys
from pathlib import Path
from runner.base import locks
from runner.base.errors import UsageError
locks.ABANDONED_SECONDS, locks.RENEWAL_SECONDS = map(float, sys.argv[2:])
with locks.held([(Path(sys.argv[1]), "--checkpoint-dir")], print) as check:
    print("held", flush=True)
    sys.stdin.readline()
    check()
"""
ABANDONED, RENEWAL = 3.0, 0.2


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits as short as a test can take."""
    for name, seconds in {
        "ABANDONED_SECONDS": ABANDONED,
        "RENEWAL_SECONDS": RENEWAL,
        "LEAVING_SECONDS": 0.5,
        "LOOK_SECONDS": 0.02,
        "REPORT_SECONDS": 0.1,
    }.items():
        monkeypatch.setattr(locks, name, seconds)


@contextmanager
def another_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """One that holds a folder's lock until it reads a line; then it checks that it still does."""
    command = [sys.executable, "-c", HOLDS, str(folder), str(ABANDONED), str(RENEWAL)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def take(folder: Path, report: Callable[[str], None] = lambda _: None) -> str:
    """Take a folder's lock, and release it. Returns what the file said meanwhile."""
    with held([(folder, "--checkpoint-dir")], report) as check:
        check()
        said = (folder / ".in-use").read_text()
    assert [path.name for path in folder.iterdir() if "in-use" in path.name] == []
    return said


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with another_process(tmp_path) as first:
        told: list[str] = []
        with pytest.raises(UsageError) as caught:
            take(tmp_path, report=told.append)
        named = f"process {first.pid} on host {os.uname().nodename}"
        assert caught.value.message == f"--checkpoint-dir: {named} writes to {tmp_path}"
        assert told == [f"waiting to see whether {named} still writes to {tmp_path}"]
        assert first.communicate("\n")[1] == ""
    assert f"pid={os.getpid()}\n" in take(tmp_path)


def test_what_a_killed_process_has_left_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with another_process(tmp_path) as first:
        first.kill()
        first.wait()
        told: list[str] = []
        monkeypatch.setattr(locks, "REPORT_SECONDS", ABANDONED / 2)
        assert f"pid={os.getpid()}\n" in take(tmp_path, told.append)
        assert told == []


def test_another_host_is_believed_while_it_renews_and_not_after(tmp_path: Path) -> None:
    path = tmp_path / ".in-use"
    path.write_text(re.sub("host=.*", "host=far", re.sub("pid=.*", "pid=4711", take(tmp_path))))
    ends = threading.Event()

    def renew() -> None:
        while not ends.wait(RENEWAL):
            os.utime(path)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(UsageError, match="process 4711 on host far writes to"):
            take(tmp_path)
    finally:
        ends.set()
        thread.join()
    assert f"pid={os.getpid()}\n" in take(tmp_path)


def test_several_abandoned_locks_are_waited_for_at_once(tmp_path: Path) -> None:
    places = [tmp_path / name for name in "abc"]
    for place in places:
        place.mkdir()
        (place / ".in-use").write_text(re.sub("host=.*", "host=far", take(place)))
    taken: list[int] = []  # how many were, each time that a wait is told

    def report(_: str) -> None:
        taken.append(sum("host=far" not in (place / ".in-use").read_text() for place in places))

    with held([(place, "--metrics") for place in places], report):
        pass
    assert taken == [0, 0, 0]


def test_who_was_taken_over_is_told_and_leaves_the_lock_to_the_other(tmp_path: Path) -> None:
    with another_process(tmp_path) as first:
        first.send_signal(signal.SIGSTOP)
        with held([(tmp_path, "--checkpoint-dir")], print) as check:
            first.send_signal(signal.SIGCONT)
            message = first.communicate("\n")[1].splitlines()[-1]
            check()
    named = f"process {os.getpid()} on host {os.uname().nodename}"
    assert f"RunnerError: {named} writes to {tmp_path} now: this run was not seen to continue for 3 s" in message


def test_a_lock_that_says_nothing_is_taken_after_some_time(tmp_path: Path) -> None:
    (tmp_path / ".in-use").write_text("{")
    assert f"pid={os.getpid()}\n" in take(tmp_path)


def test_an_empty_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "ABANDONED_SECONDS", 0.5)
    (tmp_path / ".in-use").touch()
    with pytest.raises(UsageError, match=r"another run writes to .*; remove .*/\.in-use if none does"):
        take(tmp_path)


def test_a_file_and_the_same_place_by_two_ways(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    paths = [
        (tmp_path / "link", "--checkpoint-dir"),
        (tmp_path / "real", "--logger tensorboard"),
        (tmp_path / "m.jsonl", "--metrics"),
    ]
    with held(paths, print):
        assert [path.name for path in tmp_path.rglob("*in-use")] == [".m.jsonl.in-use", ".in-use"]
        with pytest.raises(UsageError, match="--metrics: process "), held(paths[2:], lambda _: None):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "real"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--checkpoint-dir: cannot write /proc/\.in-use: "):
        take(Path("/proc"))
