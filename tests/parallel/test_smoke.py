"""The smoke test on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from tests.launching import RUNNER, mpirun_path, ok, own_lines, run


def test_on_this_machine(tmp_path: Path) -> None:
    done = ok(run(*RUNNER, "smoke", "--json", cwd=tmp_path, MPIRUN=mpirun_path()))
    jobs = {job["name"]: job for job in json.loads(done.stdout)["jobs"]}
    assert list(jobs) == ["explain", "doctor", "mnist"]
    assert {job["status"] for job in jobs.values()} <= {"ok", "warn"}
    assert "OMP_NUM_THREADS" not in jobs["doctor"]["detail"]  # the tool's own settings are not the job's
    assert not list(tmp_path.iterdir())


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
