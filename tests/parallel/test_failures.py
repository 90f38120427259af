"""A failure on one rank ends the whole job, and is told first."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import psutil
import pytest

from tests.launching import SCRIPTS, ok, runner


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_exception_on_one_rank_ends_the_job(ranks: int) -> None:
    done = runner(ranks, str(SCRIPTS / "one_rank_raises.py"), timeout=60)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.strip()]
    assert told[0].startswith(f"runner: rank {ranks - 1} of {ranks} on host ")
    assert told[0].endswith("failed: ValueError: the loss exploded")
    assert told[1].endswith("Traceback (most recent call last):"), "torch prefixes it with the rank"
    assert "one_rank_raises.py" in told[2], "the traceback begins at the script, not in the runner"
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if "one_rank_raises.py" in " ".join(p.info["cmdline"] or [])
    ]


def test_an_exception_ends_ranks_that_do_not_communicate() -> None:
    done = runner(2, str(SCRIPTS / "one_rank_raises_alone.py"), timeout=60)
    assert done.returncode == 1
    first = next(line for line in done.stderr.splitlines() if line.strip())
    assert first.endswith("failed: ValueError: the loss exploded"), "the first line of the message is the cause"


def test_a_programs_own_excepthook_is_called(tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(
        "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', error, flush=True)\nraise ValueError('x')\n"
    )
    done = runner(1, "hook.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "hooked x" in done.stdout


@pytest.mark.parametrize("code", [1, 2, 7])
def test_an_exit_code_on_one_rank_ends_the_job_while_others_wait_in_mpi(code: int) -> None:
    done = runner(2, str(SCRIPTS / "exits.py"), "1", str(code), "wait", timeout=60)
    assert done.returncode == code


def test_a_failure_in_a_workloads_own_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def main(run, argv):\n    if run.rank == 1:\n        run.no_such_thing\n    run.sum(1)\n"
    )
    done = runner(2, "mine", cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    assert "runner: rank 1 of 2 on host" in done.stderr.splitlines()[0]
    assert "no_such_thing" in done.stderr.splitlines()[0]


def test_a_script_with_an_error_in_its_text(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = (\n")
    done = runner(1, "broken.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr


def test_files_that_the_program_left_open_are_written(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import atexit, os, json, torch\n"
        "rank = os.environ['RANK']\n"
        "log = open(f'log{rank}', 'w')\n"
        "log.write('not flushed by the program')\n"
        "atexit.register(lambda: json.dump('by a handler', open(f'handler{rank}', 'w')))\n"
        "import gzip, tempfile\n"
        "packed = gzip.open(f'packed{rank}', 'wt')\n"
        "packed.write('in full')\n"
        "temporary = tempfile.NamedTemporaryFile(dir='.')\n"
    )
    ok(runner(2, "leaves.py", cwd=tmp_path))
    for rank in range(2):
        assert (tmp_path / f"log{rank}").read_text() == "not flushed by the program"
        assert json.loads((tmp_path / f"handler{rank}").read_text()) == "by a handler"
        assert gzip.decompress((tmp_path / f"packed{rank}").read_bytes()) == b"in full"
    assert not list(tmp_path.glob("tmp*"))
