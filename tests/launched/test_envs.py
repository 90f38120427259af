"""The files in envs/ agree with each other and with the package."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from runner.versions.extras import torchvision_for
from tests.launching import ROOT, clean_environment, ok, run
from tests.polling import LIMIT, poll_until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVS = ROOT / "envs"


def names(requirements: str) -> set[str]:
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    return {re.split(r"[<>=~!; ]", line)[0] for line in lines if line and not line.startswith("-")}


def test_the_requirement_sets_are_what_the_tests_run_with() -> None:
    """pip would install nothing: all of it is here already, in these versions."""
    pip = ["-m", "pip", "install", "--dry-run", "--disable-pip-version-check", "--quiet", "--report", "-"]
    files = ["-c", "constraints.txt", "-r", "requirements-cuda.txt"]  # which has those of cpu
    assert '"install": []' in ok(run(sys.executable, *pip, *files, cwd=ENVS)).stdout


def test_they_hold_all_that_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = names("\n".join(project["dependencies"]))
    assert needed <= names((ENVS / "requirements-cpu.txt").read_text())


def versions(path: Path) -> dict[str, str]:
    return dict(line.split("==") for line in path.read_text().splitlines() if "==" in line)


@pytest.mark.parametrize("path", sorted(ENVS.glob("constraints*.txt")), ids=lambda path: path.stem)
def test_an_era_is_a_torch_with_the_torchvision_that_fits(path: Path) -> None:
    found, newest = versions(path), versions(ENVS / "constraints.txt")
    assert found["torchvision"] == torchvision_for(found["torch"])
    assert all(newest[name] == version for name, version in found.items() if not name.startswith("torch"))
    assert f"| `{path.name}` | {found['torch']}, {found['torchvision']} |" in (ENVS / "README.md").read_text()


def test_the_oldest_that_are_tried_are_those_that_the_project_claims() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        line
        for extra in ("openmpi", "vision", "plot", "tensorboard", "wandb")
        for line in project["optional-dependencies"][extra]
    ]
    claimed = dict(re.split("[,;]", line)[0].split(">=") for line in project["dependencies"] + extras)
    tried = versions(ROOT / "tests" / "oldest.txt")
    assert claimed.keys() <= tried.keys()  # one may need another of its time
    for name, version in claimed.items():
        assert tried[name].split(".")[:2] == version.split(".")[:2], name


@pytest.mark.parametrize("name", ["it4innovations.sh", "mit_orcd.sh", "venv.sh"])
def test_site_files_are_bash(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(ENVS / name)]).returncode == 0


def build_horovod(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, str(ENVS / "build_horovod.py"), "--no-install", *arguments, **environment)


def test_a_horovod_that_cannot_be_built_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mpicxx").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "mpicxx").chmod(0o755)
    for mpicxx, expected in (("/nowhere/mpicxx", "no program"), (str(tmp_path / "mpicxx"), "finds no mpi.h")):
        done = build_horovod("--mpicxx", mpicxx, "--wheels", str(tmp_path))
        assert done.returncode == 2
        assert done.stderr.startswith("horovod: ")
        assert done.stderr.count("\n") == 1
        assert expected in done.stderr


def test_a_build_that_takes_too_long_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Sources that take for ever in a process of their own, as a compiler that hangs would."""
    specification = importlib.util.spec_from_file_location("build_horovod", ENVS / "build_horovod.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    sources, child = tmp_path / "sources", tmp_path / "child"
    sources.mkdir()
    (sources / "setup.py").write_text(f"import os\nos.system('echo $$ > {child}; exec sleep 3600')\n")
    for seconds in (5, 20, 80):  # as long as pip needs here to come to the sources
        with pytest.raises(module.CannotBuildError, match="not built within"):
            module.build(sources, tmp_path, clean_environment(), tmp_path, seconds / 60)
        if child.exists():
            break
    pid = int(child.read_text())
    poll_until(lambda: not is_running(pid), LIMIT, "what pip has started ends")


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_the_readme_lists_every_file() -> None:
    readme = (ENVS / "README.md").read_text()
    for path in (path for path in ENVS.iterdir() if path.name != "__pycache__"):
        assert path.name == "README.md" or f"`{path.name}`" in readme, path.name
