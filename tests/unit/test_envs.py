"""The files in envs/ agree with each other and with the package."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.launching import ROOT, ok, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVS = ROOT / "envs"


def names(requirements: str) -> set[str]:
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    return {re.split(r"[<>=~! ]", line)[0] for line in lines if line and not line.startswith("-")}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_requirement_sets_are_what_the_tests_run_with(kind: str) -> None:
    """pip would install nothing: all of it is here already, in these versions."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--disable-pip-version-check",
        "--quiet",
        "--report",
        "-",
    ]
    report = ok(run(*pip, "-r", str(ENVS / f"requirements-{kind}.txt"))).stdout
    assert '"install": []' in report


def test_they_hold_all_that_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = names("\n".join(project["dependencies"]))
    assert needed <= names((ENVS / "requirements-cpu.txt").read_text())


@pytest.mark.parametrize("name", ["it4innovations.sh", "mit_orcd.sh", "venv.sh"])
def test_site_files_are_bash(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(ENVS / name)]).returncode == 0


def test_the_readme_lists_every_file() -> None:
    readme = (ENVS / "README.md").read_text()
    for path in ENVS.iterdir():
        assert path.name == "README.md" or f"`{path.name}`" in readme, path.name
