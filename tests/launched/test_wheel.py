"""An sdist, and the wheel made of it, hold all that is needed, in an environment that has nothing else of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launching import ROOT, ok, run

PACKAGES = ("runner", "workloads", "mpi_scripts")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"


@dataclass(frozen=True)
class Installed:
    """The project in an environment of its own."""

    environment: Path
    wheel: Path

    def run(self, program: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return ok(run(str(self.environment / "bin" / program), *arguments, cwd=cwd, **environment))


def sources(folder: Path) -> Path:
    """A copy of what packages are made of, so that nothing is left of an earlier build."""
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def make_wheel(source: Path, folder: Path, *prefix: str) -> Path:
    ok(run(*prefix, *PIP, "wheel", str(source), "--no-deps", "--no-build-isolation", "-w", str(folder)))
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, environment: Path) -> Installed:
    """Into an empty environment, which finds torch and the others where the tests have them."""
    venv.create(environment)
    ok(run(*PIP, "--python", str(environment / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel)))
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return Installed(environment, wheel)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("sdist")
    ok(run(sys.executable, "-c", BUILD_SDIST, str(folder), cwd=sources(folder / "source")))
    (sdist,) = folder.glob("*.tar.gz")
    return install(make_wheel(sdist, folder), folder / "environment")


def test_every_file_is_there(installed: Installed) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"runner/py.typed", "runner/__init__.pyi", "workloads/data/digits.csv.gz"} <= expected
    assert "mpi_scripts/slurm.sh.j2" in expected
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    assert expected == {name for name in names if name.startswith(tuple(f"{one}/" for one in PACKAGES))}
    assert any(name.endswith("licenses/workloads/data/digits.txt") for name in names)


def test_it_is_built_from_a_checkout_that_this_user_may_not_write_to(tmp_path: Path) -> None:
    source = sources(tmp_path / "source")
    before = set(source.iterdir())
    source.chmod(0o555)
    try:
        may_not_write = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
        assert make_wheel(source, tmp_path, *may_not_write)
        assert set(source.iterdir()) == before
    finally:
        source.chmod(0o755)


def test_it_is_what_runs(installed: Installed, tmp_path: Path) -> None:
    code = "import runner, workloads.mnist; print(runner.__file__)"
    where = installed.run("python", "-c", code, cwd=tmp_path).stdout.strip()
    assert Path(where).is_relative_to(installed.environment)
    assert "usage: " in installed.run("torch-mpi-runner", "--help", cwd=tmp_path).stdout
    script = ("jobscript", "--scheduler", "lsf", "explain")
    assert "jsrun" in installed.run("python", "-m", "runner", *script, cwd=tmp_path).stdout
    installed.run("python", "-m", "runner", "workloads.mnist", "--data", "digits", "--max-steps", "3", cwd=tmp_path)


def test_the_console_script_runs_beside_a_runner_of_the_users(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text("raise SystemExit('it was imported')\n")
    done = installed.run("torch-mpi-runner", "explain", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "single process" in done.stdout
