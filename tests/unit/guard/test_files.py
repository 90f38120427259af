"""Files that a guard writes in a thread: all of it where the file system answers, and no waiting for one that does not."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.guard.report.console import Files

PIECE = bytes(range(256)) * 4096  # a MiB


def test_all_that_comes_faster_than_it_is_written_is_written(tmp_path: Path) -> None:
    files = Files(print)
    for _ in range(80):
        files.append(tmp_path / "new" / "log", PIECE)
    files.close(60.0)
    assert (tmp_path / "new" / "log").read_bytes() == 80 * PIECE


def test_an_earlier_jobs_file_goes_on(tmp_path: Path) -> None:
    for _ in range(2):
        files = Files(print)
        files.append(tmp_path / "log", b"a\n")
        files.append(tmp_path / "log", b"b\n")
        files.close(60.0)
    assert re.fullmatch(r"a\nb\nrunner: started again, [-\d]+ [:\d]+\na\nb\n", (tmp_path / "log").read_text())


def test_a_file_is_replaced_left_or_removed(tmp_path: Path) -> None:
    for text, over, found in (("1", False, "1"), ("2", True, "2"), ("3", False, "2"), (None, True, None)):
        files = Files(print)
        files.put(tmp_path / "one", text, over=over)
        files.close(60.0)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == ({"one": found} if found else {})


def test_what_does_not_answer_is_given_up_and_taken_up_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    files = Files(print)
    for _ in range(40):
        files.append(tmp_path / "log", PIECE)
    with open(tmp_path / "log", "rb") as reader:
        content = b""
        while not content.endswith(b"\nrunner: the file system did not answer; some output is left out\n"):
            content += reader.read()
        assert content.startswith(PIECE)
        assert len(content) < 40 * len(PIECE)
        files.append(tmp_path / "log", b"again")
        files.close(0.1)
        while not content.endswith(b"again"):
            content += reader.read()


def test_the_first_error_is_told_once() -> None:
    told: list[str] = []
    files = Files(told.append)
    for name in "ab":
        files.append(Path("/proc/nothing", name), b"")
    files.close(60.0)
    assert told == ["--log-dir: cannot write /proc/nothing/a: No such file or directory; the job goes on without it"]
