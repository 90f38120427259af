"""A wheel made from the repository holds all that is needed."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from tests.launching import ROOT, ok, run


def test_a_wheel_installs_and_runs_outside_the_checkout(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    ok(run(*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"workloads/data/digits.csv.gz", "workloads/data/digits.txt", "mpi_scripts/slurm_srun.sh"} <= names
    assert any(name.endswith("licenses/workloads/data/digits.txt") for name in names)
    site = tmp_path / "site"
    ok(run(*pip, "install", "--no-deps", "--target", str(site), str(wheel)))
    code = "import runner, workloads.mnist; print(runner.__file__)"
    where = ok(run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site))).stdout.strip()
    assert Path(where).is_relative_to(site)
    done = ok(run(sys.executable, "-m", "runner", "explain", cwd=tmp_path, PYTHONPATH=str(site)))
    assert "single process" in done.stdout
    (tmp_path / "runner.py").write_text("raise SystemExit('it was imported')\n")
    console = str(site / "bin" / "torch-mpi-runner")
    done = ok(run(sys.executable, console, "explain", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{site}"))
    assert "single process" in done.stdout
    (tmp_path / "runner.py").unlink()
    script = ok(
        run(
            sys.executable,
            "-m",
            "runner",
            "jobscript",
            "--scheduler",
            "lsf",
            "explain",
            cwd=tmp_path,
            PYTHONPATH=str(site),
        )
    )
    assert "jsrun" in script.stdout
    mnist = ("workloads.mnist", "--data", "digits", "--max-steps", "3")  # the digits come with it
    ok(run(sys.executable, "-m", "runner", *mnist, cwd=tmp_path, PYTHONPATH=str(site)))
