"""What --log-dir leaves behind, and what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.launching import RUNNER, clean_environment, folder_of, ok, path_of, run, runner
from tests.polling import LIMIT
from tests.terminal import on_terminal

PRINTS = path_of("prints")


def kept(folder: Path, name: str) -> str:
    return (folder / "output" / name).read_bytes().decode()


def test_what_a_rank_prints_is_kept_and_shown(tmp_path: Path) -> None:
    """Also what C code and child processes write, and all that a rank has written before it was killed."""
    done = runner(2, "--log-dir", str(tmp_path), PRINTS, "ways", str(tmp_path / "said"))
    assert done.returncode == 137
    assert kept(tmp_path, "rank-00000.out") == "python 0\nC 0\nchild 0\n"
    assert kept(tmp_path, "rank-00001.out") == f"python 1\nC 1\nchild 1\n{'x' * 50_000}cut"
    assert re.fullmatch(
        r"child 1\nrunner: rank 1 of 2 on host \S+: killed by SIGKILL; the log of .*\n",
        kept(tmp_path, "rank-00001.err"),
    )
    found = failure(tmp_path)
    assert (found["rank"], found["exit_code"], found["what"]) == (1, 137, "killed by SIGKILL")
    for line in ("python 0", "C 0", "child 0", "python 1", "C 1", "child 1", "x" * 50_000 + "cut"):
        assert line in done.stdout.splitlines()
    assert "child 1\n" in done.stderr


def test_a_process_that_outlives_the_rank_is_not_waited_for(tmp_path: Path) -> None:
    done = ok(run(*RUNNER, "--log-dir", str(tmp_path), PRINTS, "leaves-a-child", str(tmp_path / "pid")))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert done.stdout == kept(tmp_path, "rank-00000.out") == "left\n"


def test_a_terminal_stays_one(tmp_path: Path) -> None:
    with_log = on_terminal(97, *RUNNER, "--log-dir", str(tmp_path), PRINTS, "terminal")
    assert with_log == on_terminal(97, *RUNNER, PRINTS, "terminal") == ["terminal True False 97", "10 %", "20 %"]
    assert kept(tmp_path, "rank-00000.out") == "terminal True False 97\n10 %\r20 %\n"


def test_without_it_the_output_is_the_launchers(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        command = [*RUNNER, PRINTS, "same-file", str(tmp_path / "log")]
        subprocess.run(command, env=clean_environment(), stdout=log, check=True, timeout=LIMIT)
    assert (tmp_path / "log").read_text() == "True\n"


def test_another_start_is_appended(tmp_path: Path) -> None:
    in_place = [*RUNNER, "--log-dir", str(tmp_path), "--restart-in-place", "1", PRINTS]
    ok(run(*in_place, "fails-once", str(tmp_path / "once")))
    again = r"runner: started again, \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n"
    assert re.fullmatch(f"first\n{again}second\n", kept(tmp_path, "rank-00000.out"))
    ok(run(*in_place, "fails-once", str(tmp_path / "once")))
    assert re.fullmatch(f"first\n{again}second\n{again}second\n", kept(tmp_path, "rank-00000.out"))


def test_lines_are_shown_with_their_rank() -> None:
    done = ok(runner(2, "--prefix-output", PRINTS, "plain"))
    assert sorted(done.stdout.splitlines()) == ["[0] second", "[1] second"]
    asks = [*RUNNER, "--prefix-output", PRINTS, "asks"]
    with subprocess.Popen(asks, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.read(10) == b"[0] name? "
        output, _ = process.communicate(b"me\n", timeout=LIMIT)
        assert (process.returncode, output) == (0, b"me\n[0] 10 %\r[0] done\n")


def test_a_folder_that_cannot_be_written_is_said_and_does_not_end_the_job() -> None:
    done = ok(run(*RUNNER, "--log-dir", "/proc/nothing", PRINTS, "plain"))
    assert done.stdout == "second\n"
    (line,) = done.stderr.splitlines()
    assert ": --log-dir: cannot write /proc/nothing/" in line
    assert line.endswith(": No such file or directory; the job goes on without it")


def failure(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "failure.json").read_text())


def test_the_first_failure_is_kept_until_the_next_job(tmp_path: Path) -> None:
    job = ["--log-dir", str(tmp_path / "log"), "faulty", "--checkpoint-dir", str(tmp_path), "--save-every", "end"]
    began = time.time()
    done = runner(2, *job, "--fault", "raise", cwd=folder_of("faulty"))
    assert done.returncode == 1
    found = failure(tmp_path / "log")
    assert found["format"] == 1
    assert (found["rank"], found["size"], found["ended_with_it"], found["host"]) == (1, 2, [0], socket.gethostname())
    assert (found["exit_code"], found["what"], found["step"], found["attempt"]) == (1, "ValueError: odd", 5, 0)
    assert found["traceback"].startswith("Traceback (most recent call last):\n")
    assert found["traceback"].endswith('in raise_an_error\n    raise ValueError("odd")\nValueError: odd\n')
    assert found["command"][1:] == ["-m", "runner", *job, "--fault", "raise"]
    assert began < found["time"] < time.time()
    assert found["stacks"] == ""

    done = runner(2, *job, "--fault", "sleep", "--hang-timeout", "2", cwd=folder_of("faulty"))
    assert done.returncode == 70
    found = failure(tmp_path / "log")
    assert (found["rank"], found["exit_code"], found["step"], found["traceback"]) == (1, 70, 5, "")
    assert found["stacks"].startswith("process group default_pg: rank 0 ")
    assert re.findall(r"^rank (\d), ", found["stacks"], re.MULTILINE) == ["0", "1"]

    ok(run(*RUNNER, "--log-dir", str(tmp_path / "log"), PRINTS, "plain"))
    assert not (tmp_path / "log" / "failure.json").exists()


def test_a_process_of_the_launchers_that_is_gone_is_the_failure(tmp_path: Path) -> None:
    assert runner(2, "--log-dir", str(tmp_path), PRINTS, "kills-its-proxy").returncode != 0
    found = failure(tmp_path)
    assert (found["rank"], found["exit_code"], found["host"]) == (1, None, socket.gethostname())
    assert found["what"] == "the process that its launcher had started was killed"


def test_a_file_system_that_hangs_stops_nothing(tmp_path: Path) -> None:
    """Opening a pipe that nobody reads takes forever, as does a file of a server that has gone."""
    for folder, name in (("state", "rank-00000.new"), ("output", "rank-00000.out")):
        (tmp_path / folder).mkdir()
        os.mkfifo(tmp_path / folder / name)
    done = ok(run(*RUNNER, "--log-dir", str(tmp_path), PRINTS, "plain"))
    assert done.stdout == "second\n"
