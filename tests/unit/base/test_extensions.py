"""What another package adds and what cannot be loaded of it: one line, whatever was asked for."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from tests.launching import RUNNER, own_lines, run

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
