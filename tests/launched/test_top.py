"""``top`` as a command: printed once, live on a terminal, and ended in the ways that users end it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launching import RUNNER, clean_environment, ok, run
from tests.results import refused
from tests.terminal import on_terminal

RANKS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 64 ranks, of which rank 41 was killed."""
    path = tmp_path_factory.mktemp("job")
    (path / "state").mkdir()
    for rank in range(RANKS):
        leave(path, rank, **({"phase": "ended", "exit_code": 137, "what": "killed by SIGKILL"} if rank == 41 else {}))
    return path


def leave(path: Path, rank: int, **other: Any) -> None:
    now = time.time() + 3600  # so that none is missing, however long the tests take
    state = {"rank": rank, "size": RANKS, "host": f"node{rank // 8}", "time": now, "started": now, "progress": now}
    state |= {"phase": "training", "step": 7, "steps": 600, "loss": 0.5, "step_seconds": 0.1, "cpu": 100.0} | other
    (path / "state" / f"rank-{rank:05d}.json").write_text(json.dumps(state))


class Terminal:
    """A command on a terminal of its own, with 80 columns."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(24)
        self.seen = ""
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        environment = clean_environment(TERM="xterm")
        for name in ("LINES", "COLUMNS"):  # a worker of pytest-xdist has them; they count more than the terminal's size
            environment.pop(name, None)
        self.process = subprocess.Popen(["setsid", "--ctty", *command], env=environment, **streams)
        os.close(theirs)

    def resize(self, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))

    def wait_for(self, shown: Callable[[list[str]], bool]) -> list[str]:
        """The lines of the first picture, of those that come from now on, which is as wanted."""
        self.seen, deadline = "", time.monotonic() + 60
        while self._read(deadline):
            for picture in self.seen.split("\x1b[H")[1:]:
                lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", picture).replace("\r", "").split("\n")
                if shown(lines):
                    return lines
        raise AssertionError(self.seen)

    def end(self) -> int:
        """The exit code of the command."""
        deadline = time.monotonic() + 60
        while self._read(deadline):
            pass
        return self.process.wait(1)

    def _read(self, deadline: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        with contextlib.suppress(OSError):  # EIO: the command has ended
            self.seen += os.read(self._ours, 65536).decode()
            return True
        return False

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    """The live view of the job."""
    shown = Terminal(*RUNNER, "top", str(folder))
    yield shown
    shown.close()


def test_it_is_printed_once(folder: Path) -> None:
    seen = on_terminal(80, *RUNNER, "top", "--once", str(folder))
    assert max(map(len, seen)) <= 80
    assert seen[2] == "failed: rank 41 on node5: killed by SIGKILL (exit code 137)"
    ranks = [int(line.split()[0]) for line in seen[6:] if line.strip()[:1].isdigit()]
    assert ranks == [41, *range(41), *range(42, RANKS)]
    found = json.loads(ok(run(*RUNNER, "top", "--json", str(folder))).stdout)
    assert (found["size"], found["counts"]) == (RANKS, {"failed": 1, "running": 63})
    assert [rank["rank"] for rank in found["ranks"]] == ranks


@pytest.mark.parametrize("words", [["top", "--json"], ["report", "--output", "page.html"]])
def test_output_that_nobody_reads_ends_a_tool_silently(words: list[str], folder: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = clean_environment(PYTHONUNBUFFERED="1")
    command = [*RUNNER, *words, str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_it_follows_the_job_and_the_terminals_size(folder: Path, terminal: Terminal) -> None:
    first = terminal.wait_for(lambda lines: lines[-1].startswith("47 more ranks; Ctrl-C: quit"))
    assert first[2].startswith("failed: rank 41")
    assert max(map(len, first)) <= 80
    assert len(first) == 24
    terminal.resize(34)
    assert len(terminal.wait_for(lambda lines: lines[-1].startswith("37 more ranks"))) == 34
    leave(folder, 7, step_seconds=0.2)
    terminal.wait_for(lambda lines: lines[3].startswith("slow: rank 7 on node0: a step takes 2.0 times"))
    terminal.resize(100)
    terminal.wait_for(lambda lines: any(line.startswith("Ctrl-C: quit") for line in lines))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_however_it_ends_the_terminal_is_as_before(terminal: Terminal, number: int, code: int) -> None:
    terminal.wait_for(lambda lines: "Ctrl-C" in lines[-1])
    terminal.process.send_signal(number)
    assert terminal.end() == code
    assert "Traceback" not in terminal.seen
    assert terminal.seen.rindex("\x1b[?1049l") > terminal.seen.rfind("\x1b[?1049h")
    assert terminal.seen.rindex("\x1b[?25h") > terminal.seen.rfind("\x1b[?25l")


def test_the_newest_job_is_shown(tmp_path: Path) -> None:
    def shown(*words: str) -> str:
        found = json.loads(ok(run(*RUNNER, "top", "--json", *words, cwd=tmp_path)).stdout)["folder"]
        assert isinstance(found, str)
        return found

    refused(run(*RUNNER, "top", cwd=tmp_path), "no job has left a folder state/ here or in runs/*/; name the --log-dir")
    for age, name in enumerate(["runs/new", "runs/old", "."]):
        (tmp_path / name / "state").mkdir(parents=True)
        os.utime(tmp_path / name / "state", (1e9 - age, 1e9 - age))
    assert shown() == "runs/new"
    assert shown("runs/old") == "runs/old"
    os.utime(tmp_path / "state")
    assert shown() == "."
    refused(run(*RUNNER, "top", "runs", cwd=tmp_path), "there is no folder runs/state; name the --log-dir of a job")
