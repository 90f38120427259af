"""What another package adds and what cannot be loaded of it: one line, whatever was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launching import PROGRAMS, RUNNER, before_path, ok, run, with_entry_points
from tests.results import refused

GROUPS = {"strategy": "strategies"}
TRAINING = ("workloads.linear", "--strategy", "name")
LOGGED = ("workloads.linear", "--logger", "name")


@pytest.mark.parametrize(
    ("kind", "target", "problem", "command"),
    [
        ("launcher", "added:__name__", "TypeError: it is a str, no launcher", ("explain",)),
        ("backend", "added:__name__", "TypeError: 'str' object is not callable", ("explain",)),
        ("backend", "added:Other", "TypeError: it is a Other, no backend", ("explain",)),
        ("strategy", "added:__name__", "TypeError: it is a str, no strategy", TRAINING),
        ("logger", "added:__name__", "TypeError: it is a str, no logger", LOGGED),
        ("tool", "added:NONE", "AttributeError", ("name",)),
        ("tool", "nothing:NONE", "ModuleNotFoundError", ("name",)),
        ("site", "added:Other", "TypeError", ("jobscript", "--site", "name", "train.py")),
    ],
)
def test_what_does_not_load_is_one_line(
    tmp_path: Path, kind: str, target: str, problem: str, command: tuple[str, ...]
) -> None:
    points = f"[runner.{GROUPS.get(kind, kind + 's')}]\nname = {target}\n"
    path = with_entry_points(tmp_path, "added", "class Other: pass", points)
    told = f"the {kind} name of another package cannot be loaded from {target}: {problem}"
    done = run(*RUNNER, *command, PYTHONPATH=path, cwd=tmp_path)
    refused(done, told, "; fix or uninstall that package")


@pytest.mark.parametrize("information", ["added-1.0.dist-info", "Added.egg-info"])
def test_a_package_is_found_however_it_is_installed(tmp_path: Path, information: str) -> None:
    (tmp_path / information).mkdir()
    (tmp_path / information / "PKG-INFO").write_text("Name: added\n")
    (tmp_path / information / "entry_points.txt").write_text("[runner.tools]\nname = nothing:NONE\n")
    done = run(*RUNNER, "name", PYTHONPATH=before_path(tmp_path))
    refused(done, "the tool name of another package cannot be loaded from nothing:NONE")


def test_a_launcher_of_another_package() -> None:
    path = before_path(PROGRAMS / "extensions" / "other_launcher")
    set_by_it = {"GRID_TASK": "0", "GRID_TASKS": "1", "GRID_LOCAL": "0"}
    found = json.loads(ok(run(*RUNNER, "explain", "--json", PYTHONPATH=path, **set_by_it)).stdout)
    assert found["launcher"] == {"name": "grid", "title": "Grid", "why": "GRID_TASK=0 set"}
    assert found["sources"] == {"rank": "GRID_TASK", "size": "GRID_TASKS", "local_rank": "GRID_LOCAL"}
    under_mpi = set_by_it | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    found = json.loads(ok(run(*RUNNER, "explain", "--json", PYTHONPATH=path, **under_mpi)).stdout)
    assert found["launcher"]["name"] == "grid"
    done = run(*RUNNER, "--launcher", "grid", "explain", PYTHONPATH=path)
    refused(done, "Grid is half set: nothing without GRID_TASK, GRID_TASKS")


def test_a_site_of_another_package(tmp_path: Path) -> None:
    module = "from pathlib import Path\nFILE = Path(__file__).with_name('ours.toml')\n"
    path = with_entry_points(tmp_path, "added", module, "[runner.sites]\nours = added:FILE\n")
    known = 'title = "Ours"\npage = "https://docs.example.org/gpu"\nread = 2026-11-29\nscheduler = "slurm"\n'
    profile = tmp_path / "ours.toml"
    profile.write_text(known + 'queue = "gpu"\ngpus_per_node = 4\n')
    command = (*RUNNER, "jobscript", "--site", "ours", "workloads.linear")
    script = ok(run(*command, PYTHONPATH=path, cwd=tmp_path)).stdout
    assert "#SBATCH --partition=gpu" in script
    assert "#SBATCH --ntasks-per-node=4" in script
    assert "RUNNER_SITE" in script
    profile.write_text(known + "gpus_per_nod = 4\n")
    refused(run(*command, PYTHONPATH=path, cwd=tmp_path), "has an unknown key 'gpus_per_nod'", "take gpus_per_node")
    profile.write_text(known + 'gpus_per_node = "4"\n')
    refused(run(*command, PYTHONPATH=path, cwd=tmp_path), "gpus_per_node = '4' is no int", "correct the file")
