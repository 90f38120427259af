"""Locks: one run at a time, whatever becomes of its process. The others are real processes; one of another host is only a file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base import locks
from runner.base.errors import RunnerError, UsageError
from runner.base.locks import Holder, held, remove_left
from tests.launching import ROOT

HOLDS = """
import sys
from pathlib import Path
from runner.base.locks import Holder, held
with held([(Path(sys.argv[1]), "--checkpoint-dir")], Holder.here(job=sys.argv[2]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits as short as a test can take."""
    for name, seconds in {"_ABANDONED": 1.0, "_ENDING": 0.2, "_LOOKS": 0.02, "_REPORTED_AFTER": 0.1}.items():
        monkeypatch.setattr(locks, name, seconds)


@contextmanager
def another_process(folder: Path, job: str = "") -> Iterator[subprocess.Popen[str]]:
    """One that holds a folder's lock until its input ends."""
    command = [sys.executable, "-c", HOLDS, str(folder), job]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def taken(folder: Path, own: Holder | None = None, report: Callable[[str], None] = lambda _: None) -> Holder:
    """Take a folder's lock, and give it back. Returns what it said meanwhile."""
    with held([(folder, "--checkpoint-dir")], own or Holder.here(), report):
        found = locks._read(folder / ".in-use")
    assert found is not None
    assert [path.name for path in folder.iterdir() if "in-use" in path.name] == []
    return found


def left_by_another_host(folder: Path, **more: str) -> Holder:
    holder = replace(Holder.here(), machine="another", host="far", process=4711, **more)
    assert locks._create(folder / ".in-use", holder)
    return holder


@contextmanager
def renewing(path: Path, holder: Holder) -> Iterator[None]:
    """As the other host does."""
    ends = threading.Event()

    def renew() -> None:
        lock = locks.Lock(path, holder, path.parent)
        while not ends.wait(0.05):
            lock.renew()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with another_process(tmp_path, job="12_3") as first:
        told: list[str] = []
        with pytest.raises(UsageError) as caught:
            taken(tmp_path, report=told.append)
        named = f"job 12_3, process {first.pid} on host {os.uname().nodename}"
        assert caught.value.message == f"--checkpoint-dir: {named} writes to {tmp_path}"
        assert told == [f"waiting to see whether {named} still writes to {tmp_path}"]
        first.communicate("")
    assert taken(tmp_path).process == os.getpid()


def test_what_a_killed_process_has_left_is_taken_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_ABANDONED", 1e9)
    with another_process(tmp_path) as first:
        first.kill()
        first.wait()
        assert taken(tmp_path).process == os.getpid()


def test_a_guard_removes_what_its_worker_has_left_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with another_process(tmp_path / "a") as first:
        lock = tmp_path / "a" / ".in-use"
        remove_left([lock, tmp_path / "b" / ".in-use"], os.getpid())
        assert lock.exists()
        first.kill()
        first.wait()
        remove_left([lock], first.pid)
        assert not lock.exists()


def test_another_host_is_believed_while_it_renews_and_not_after(tmp_path: Path) -> None:
    holder = left_by_another_host(tmp_path)
    with renewing(tmp_path / ".in-use", holder), pytest.raises(UsageError, match="process 4711 on host far writes to"):
        taken(tmp_path)
    assert taken(tmp_path).token != holder.token


@pytest.mark.parametrize("content", ["", "{", '{"token": "../x"}', '{"someone": "else"}'])
def test_a_lock_that_says_nothing_is_abandoned_some_time(content: str, tmp_path: Path) -> None:
    (tmp_path / ".in-use").write_text(content)
    assert taken(tmp_path).process == os.getpid()


def test_a_lock_that_is_a_link_to_nothing_is_no_hang(tmp_path: Path) -> None:
    (tmp_path / ".in-use").symlink_to("nothing")
    assert taken(tmp_path).process == os.getpid()


def test_who_was_taken_over_is_told_and_leaves_the_lock_to_the_other(tmp_path: Path) -> None:
    with held([(tmp_path, "--checkpoint-dir")], Holder.here(), print) as (lock,):
        lock.check()
        old = lock._holder
        other = replace(old, token="0123", machine="another", host="far", process=4711)
        assert locks._take_over(lock.path, old, other)
        lock.renew()
        with pytest.raises(RunnerError, match=rf"process 4711 on host far writes to {tmp_path} now: this run was not"):
            lock.check()
    assert locks._read(tmp_path / ".in-use") == other


def test_a_renewal_that_hangs_writes_to_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, hangs = threading.Event(), threading.Event()
    write = os.pwrite

    def hang(*arguments: Any) -> int:
        hangs.set()
        assert goes_on.wait(300)
        return write(*arguments)

    with held([(tmp_path, "--checkpoint-dir")], Holder.here(), print) as (lock,):
        monkeypatch.setattr(os, "pwrite", hang)
        renewing = threading.Thread(target=lock.renew)
        renewing.start()
        assert hangs.wait(300)
    with open(tmp_path / "other", "w") as other:
        assert other.fileno() != lock._file
        goes_on.set()
        renewing.join()
        lock.renew()
    assert (tmp_path / "other").read_text() == ""
    os.close(lock._file)


def test_of_many_only_one_takes_over(tmp_path: Path) -> None:
    old = left_by_another_host(tmp_path)
    own = [Holder.here() for _ in range(16)]
    start = threading.Barrier(len(own))
    won: list[Holder] = []

    def take(holder: Holder) -> None:
        start.wait()
        if locks._take_over(tmp_path / ".in-use", old, holder):
            won.append(holder)

    threads = [threading.Thread(target=take, args=(holder,)) for holder in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [locks._read(tmp_path / ".in-use")]
    assert [path.name for path in tmp_path.iterdir()] == [".in-use"]


def test_a_supervised_job_goes_on_at_once_also_on_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_ABANDONED", 1e9)
    left_by_another_host(tmp_path, supervised="supervise 123", attempt="attempt-1")
    assert taken(tmp_path, Holder.here(supervised="supervise 123", attempt="attempt-2")).attempt == "attempt-2"


def test_a_job_that_was_queued_again_waits_for_the_end_of_its_first_start(tmp_path: Path) -> None:
    first, second = Holder.here(job="12", start="0"), Holder.here(job="12", start="1")
    assert first.is_queued_again_as(second)
    assert not first.is_queued_again_as(Holder.here(job="12", start="0"))  # another step of the same job
    assert not first.is_queued_again_as(Holder.here(job="13", start="1"))
    holder = left_by_another_host(tmp_path, job="12", start="0")
    ends = threading.Timer(1.0, (tmp_path / ".in-use").unlink)
    with renewing(tmp_path / ".in-use", holder):
        ends.start()
        assert taken(tmp_path, second).job == "12"


def test_a_file_and_the_same_place_by_two_ways(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    paths = [
        (tmp_path / "link", "--checkpoint-dir"),
        (tmp_path / "real", "--logger tensorboard"),
        (tmp_path / "m.jsonl", "--metrics"),
    ]
    with held(paths, Holder.here(), print) as found:
        assert [lock.path for lock in found] == [tmp_path / "real" / ".in-use", tmp_path / ".m.jsonl.in-use"]
        with pytest.raises(UsageError, match="--metrics: process "), held(paths[2:], Holder.here(), lambda _: None):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "real"]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--checkpoint-dir: cannot write /proc/\.in-use: "):
        taken(Path("/proc"))
