"""The smoke test on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil

from tests.launching import RUNNER, clean_environment, mpirun, mpirun_path, ok, own_lines, run
from tests.polling import LIMIT, poll_until


def test_on_this_machine(tmp_path: Path) -> None:
    done = ok(run(*RUNNER, "smoke", "--json", cwd=tmp_path, MPIRUN=mpirun_path()))
    jobs = {job["name"]: job for job in json.loads(done.stdout)["jobs"]}
    assert list(jobs) == ["explain", "doctor", "mnist"]
    assert {job["status"] for job in jobs.values()} <= {"ok", "warn"}
    assert "OMP_NUM_THREADS" not in jobs["doctor"]["detail"]  # the tool's own settings are not the job's
    assert not list(tmp_path.iterdir())


def test_ended_by_a_signal_it_leaves_nothing(tmp_path: Path) -> None:
    """As a time limit or a closed terminal would end it."""
    (tmp_path / "mpirun").write_text(
        '#!/bin/bash\n[ "$1" = --version ] && echo "Open MPI" && exit\ntouch "$0.runs"\nexec sleep 300\n'
    )
    (tmp_path / "mpirun").chmod(0o755)
    settings = clean_environment(MPIRUN=str(tmp_path / "mpirun"))
    with subprocess.Popen([*RUNNER, "smoke"], cwd=tmp_path, env=settings, stdin=subprocess.DEVNULL) as process:
        poll_until((tmp_path / "mpirun.runs").exists, LIMIT, "mpirun runs", process)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT) == 143
    _, alive = psutil.wait_procs(started, timeout=LIMIT)
    assert started
    assert not alive
    assert {path.name for path in tmp_path.iterdir()} == {"mpirun", "mpirun.runs"}


def test_under_mpirun_it_says_to_start_it_without() -> None:
    done = mpirun(2, *RUNNER, "smoke")
    assert done.returncode == 2
    assert own_lines(done)[0] == "runner: smoke starts mpirun or srun itself; start it without"


def test_without_an_mpirun(tmp_path: Path) -> None:
    done = run(*RUNNER, "smoke", cwd=tmp_path, MPIRUN="/no/mpirun")
    assert done.returncode == 2
    assert own_lines(done) == ["runner: MPIRUN=/no/mpirun is no program; set it to the mpirun to use, or unset it"]


def test_a_job_that_fails_is_a_row(tmp_path: Path) -> None:
    """An mpirun that ends at once, as one does that may not run as root."""
    broken = tmp_path / "mpirun"
    broken.write_text(
        '#!/bin/bash\n[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.4" && exit\necho "no slots here" >&2\nexit 3\n'
    )
    broken.chmod(0o755)
    done = run(*RUNNER, "smoke", cwd=tmp_path, MPIRUN=str(broken))
    assert done.returncode == 1
    assert "exit code 3: no slots here" in done.stdout
    assert done.stdout.count("not started, as explain failed") == 2
