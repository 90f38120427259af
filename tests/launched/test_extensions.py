"""What another package adds and what cannot be loaded of it: one line, whatever was asked for."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from tests.launching import PROGRAMS, RUNNER, ok, own_lines, run

GROUPS = {"strategy": "strategies"}
TRAINING = ("workloads.linear", "--strategy", "name")
LOGGED = ("workloads.linear", "--logger", "name")


@pytest.mark.parametrize(
    ("kind", "target", "problem", "command"),
    [
        ("launcher", "added:NONE", "AttributeError", ("explain",)),
        ("launcher", "added:__name__", "TypeError: it is a str, not a Launcher", ("explain",)),
        ("backend", "added:NONE", "AttributeError", ("explain",)),
        ("backend", "added:__name__", "TypeError: 'str' object is not callable", ("explain",)),
        ("backend", "added:Other", "TypeError: it is a Other, not a Backend", ("explain",)),
        ("strategy", "added:NONE", "AttributeError", TRAINING),
        ("strategy", "added:__name__", "TypeError: it is a str, not a function", TRAINING),
        ("logger", "added:NONE", "AttributeError", LOGGED),
        ("logger", "added:__name__", "TypeError: it is a str, not a function", LOGGED),
        ("tool", "added:NONE", "AttributeError", ("name",)),
        ("tool", "nothing:NONE", "ModuleNotFoundError", ("name",)),
    ],
)
def test_what_does_not_load_is_one_line(
    tmp_path: Path, kind: str, target: str, problem: str, command: tuple[str, ...]
) -> None:
    (tmp_path / "added.py").write_text("class Other: pass")
    information = tmp_path / "added-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: added\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[runner.{GROUPS.get(kind, kind + 's')}]\nname = {target}\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(*RUNNER, *command, PYTHONPATH=path, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (told,) = own_lines(done)
    assert f"the {kind} name of another package cannot be loaded from {target}: {problem}" in told
    assert told.endswith("; fix or uninstall that package")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("entry", "information"),
    [
        ("", "added-1.0.dist-info"),
        ("", "Added.egg-info"),
        ("added-1.0.egg", "EGG-INFO"),
        ("added.zip", "added.egg-info"),
    ],
)
def test_a_package_is_found_however_it_is_installed(tmp_path: Path, entry: str, information: str) -> None:
    files = {"PKG-INFO": "Name: added\n", "entry_points.txt": "[runner.tools]\nname = nothing:NONE\n"}
    if entry.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / entry, "w") as packed:
            for name, text in files.items():
                packed.writestr(f"{information}/{name}", text)
    else:
        (tmp_path / entry / information).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / entry / information / name).write_text(text)
    path = os.pathsep.join([str(tmp_path / entry), os.environ.get("PYTHONPATH", "")])
    (told,) = own_lines(run(*RUNNER, "name", PYTHONPATH=path))
    assert "the tool name of another package cannot be loaded from nothing:NONE" in told


def test_a_launcher_of_another_package() -> None:
    path = os.pathsep.join([str(PROGRAMS / "extensions" / "other_launcher"), os.environ.get("PYTHONPATH", "")])
    set_by_it = {"GRID_TASK": "0", "GRID_TASKS": "1", "GRID_LOCAL": "0"}
    found = json.loads(ok(run(*RUNNER, "explain", "--json", PYTHONPATH=path, **set_by_it)).stdout)
    assert found["launcher"] == {"name": "grid", "title": "Grid", "why": "GRID_TASK=0 set"}
    assert found["sources"] == {"rank": "GRID_TASK", "size": "GRID_TASKS", "local_rank": "GRID_LOCAL"}
    under_mpi = set_by_it | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    found = json.loads(ok(run(*RUNNER, "explain", "--json", PYTHONPATH=path, **under_mpi)).stdout)
    assert found["launcher"]["name"] == "grid"
    done = run(*RUNNER, "--launcher", "grid", "explain", PYTHONPATH=path)
    assert done.returncode == 2
    assert "Grid is half set: nothing without GRID_TASK, GRID_TASKS" in done.stderr
