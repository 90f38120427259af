"""The smoke test on this machine."""

from __future__ import annotations

from pathlib import Path
from signal import SIGTERM

import psutil

from tests.launching import RUNNER, finish, mpirun_path, ok, run, runner, start
from tests.polling import LIMIT, poll_until
from tests.results import refused


def mpirun_that(folder: Path, does: str) -> str:
    path = folder / "mpirun"
    path.write_text(f'#!/bin/bash\n[ "$1" = --version ] && echo "Open MPI" && exit\n{does}\n')
    path.chmod(0o755)
    return str(path)


def test_on_this_machine(tmp_path: Path) -> None:
    done = ok(run(*RUNNER, "smoke", cwd=tmp_path, MPIRUN=mpirun_path()))
    assert done.stdout.endswith("\nexplain  pass\ndoctor   pass\nmnist    pass\n")
    assert "20 steps" in done.stdout
    assert " report " not in done.stdout  # of a folder that is gone
    assert not list(tmp_path.iterdir())


def test_ended_by_a_signal_it_leaves_nothing(tmp_path: Path) -> None:
    """As a time limit or a closed terminal would end it."""
    process = start(*RUNNER, "smoke", cwd=tmp_path, MPIRUN=mpirun_that(tmp_path, 'touch "$0.runs"; exec sleep 300'))
    poll_until((tmp_path / "mpirun.runs").exists, LIMIT, "mpirun runs", process)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(SIGTERM)
    assert finish(process).returncode == 143
    _, alive = psutil.wait_procs(started, timeout=LIMIT)
    assert started
    assert not alive
    assert {path.name for path in tmp_path.iterdir()} == {"mpirun", "mpirun.runs"}


def test_where_it_cannot_start_it_says_what_to_do(tmp_path: Path) -> None:
    refused(runner(1, "smoke"), "runner: smoke starts mpirun or srun itself; start it without")
    done = run(*RUNNER, "smoke", cwd=tmp_path, MPIRUN="/no/mpirun")
    refused(done, "runner: MPIRUN=/no/mpirun is no program; set it to the mpirun to use, or unset it")


def test_what_fails_is_told(tmp_path: Path) -> None:
    broken = mpirun_that(tmp_path, "echo no slots here >&2; exit 3")
    done = run(*RUNNER, "smoke", cwd=tmp_path, MPIRUN=broken)
    assert done.returncode == 1
    assert "no slots here" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("explain  fail: exit code 3; the ranks do not start")
    no_training = mpirun_that(tmp_path, 'case "$*" in *mnist*) exit 1 ;; *doctor*) exec sleep 300 ;; esac')
    done = run(*RUNNER, "smoke", "--limit", "1", cwd=tmp_path, MPIRUN=no_training)
    assert done.returncode == 1
    results = [result.partition(";")[0] for result in done.stdout.splitlines()[-3:]]
    assert results == ["explain  pass", "doctor   fail: not done after 1 s", "mnist    fail: exit code 1"]
