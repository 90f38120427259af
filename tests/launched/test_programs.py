"""A program finds under the runner what it finds under python: in each form in which Python runs one, and before its imports."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.launching import (
    PROGRAMS,
    ROOT,
    RUNNER,
    clean_environment,
    free_port,
    ok,
    own_lines,
    path_of,
    run,
    runner,
    torchrun_command,
    under_mpirun,
)
from tests.polling import LIMIT
from tests.results import refused

PROGRAM = Path(path_of("how_it_runs"))
FORMS = {
    "script": ["s.py", "spawn"],
    "script in a folder": ["sub/s.py", "spawn"],
    "script, by a link": ["link.py", "spawn"],
    "script without a suffix": ["./plain", "a"],
    "compiled": ["c.pyc"],
    "folder": ["folder", "a"],
    "folder with a slash": ["./folder/"],
    "zip file": ["app.pyz", "reason"],
    "module": ["-m", "package.module", "spawn"],
    "package": ["-m", "package", "--lr", "0.1"],
    "code": ["-c", PROGRAM.read_text(), "a", "-x"],
    "standard input": ["-", "a"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import py_compile

    folder = tmp_path_factory.mktemp("programs")
    for copy in ("s.py", "plain", "sub/s.py", "folder/__main__.py", "package/__main__.py", "package/module.py"):
        (folder / copy).parent.mkdir(exist_ok=True)
        (folder / copy).write_text(PROGRAM.read_text())
    (folder / "package" / "__init__.py").touch()
    (folder / "link.py").symlink_to(folder / "sub" / "s.py")
    py_compile.compile(str(folder / "s.py"), str(folder / "c.pyc"))
    with zipfile.ZipFile(folder / "app.pyz", "w") as archive:
        archive.write(PROGRAM, "__main__.py")
    return folder


def found(command: list[str], folder: Path) -> tuple[int, str, str]:
    with open(PROGRAM) as program:
        done = subprocess.run(
            command, cwd=folder, env=clean_environment(), stdin=program, capture_output=True, text=True, timeout=LIMIT
        )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_program_is_run_as_python_does(form: list[str], folder: Path) -> None:
    flags = ["-X", "utf8", "-W", "ignore::ImportWarning"]
    assert found([sys.executable, *flags, *RUNNER[1:], *form], folder) == found([sys.executable, *flags, *form], folder)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has -P from 3.11 on")
def test_with_a_safe_path_a_folder_finds_all_that_python_does(tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import sys; print(sys.path)\n")
    by_python, by_runner = (
        ok(run(sys.executable, "-P", *arguments, str(tmp_path), PYTHONPATH=f"/no/such/folder:{ROOT}")).stdout
        for arguments in ([], RUNNER[1:])
    )
    assert by_runner == by_python


def test_a_program_that_is_none_of_pythons(tmp_path: Path) -> None:
    done = ok(runner(2, "--no-python", "sh", "-c", 'echo "$RANK of $WORLD_SIZE"'))
    assert sorted(done.stdout.split("\n")) == ["", "0 of 2", "1 of 2"]
    ended = runner(1, "--no-python", "sh", "-c", "kill -KILL $$")
    assert (ended.returncode, own_lines(ended)) == (137, [])


def test_a_script_that_is_named_by_its_path_is_that_one(tmp_path: Path) -> None:
    script = tmp_path / "true"
    script.write_text("#!/bin/sh\necho own $0 $RANK\n")
    script.chmod(0o755)
    assert ok(run(*RUNNER, "--no-python", "./true", cwd=tmp_path)).stdout == "own ./true 0\n"
    script.write_text("#!/bin/sh\r\n")
    refused(run(*RUNNER, "--no-python", "./true", cwd=tmp_path), "./true cannot be executed", "carriage return")
    script.chmod(0o644)
    refused(run(*RUNNER, "--no-python", "./true", cwd=tmp_path), "chmod +x ./true")


def test_a_profiler_measures_the_program_where_the_runner_starts_it(tmp_path: Path) -> None:
    ok(run(*RUNNER, "-m", "cProfile", "-o", "profile", "-m", "this", cwd=tmp_path))
    assert (tmp_path / "profile").exists()


def test_a_long_name_of_the_folder_for_temporary_files(tmp_path: Path) -> None:
    """Data loader processes would wait there for ever."""
    folder = tmp_path / ("a" * 90)
    folder.mkdir()
    (line,) = own_lines(ok(run(*RUNNER, "-c", "pass", cwd=tmp_path, TMPDIR=str(folder))))
    assert f"TMPDIR={folder} has " in line
    workload = ("workloads.linear", "--workers", "1", "--checkpoint-dir", "run")
    refused(run(*RUNNER, *workload, cwd=tmp_path, TMPDIR=str(folder)), "--workers 1: TMPDIR=", "TMPDIR=/tmp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--no-python", "no-such-program"), "no program no-such-program to execute"),
        (("-",), "no program on standard input"),
        (("no_main/",), "the folder no_main/ has no __main__.py"),
    ],
)
def test_what_is_no_program_is_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "no_main").mkdir()
    refused(run(*RUNNER, *arguments, cwd=tmp_path), message)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return sorted(ok(done).stdout.splitlines())


@pytest.mark.parametrize("ranks", [under_mpirun(2, sys.executable), torchrun_command(2)], ids=["mpirun", "torchrun"])
def test_torch_is_imported_by_the_program(ranks: list[str]) -> None:
    """So what the program sets before its import counts on all ranks."""
    done = run(*ranks, *RUNNER[1:], path_of("before_torch"))
    assert lines(done) == ["rank 0: False True", "rank 1: False True"]


def test_a_rank_0_without_torch_serves_the_others_all_the_same(tmp_path: Path) -> None:
    done = runner(2, path_of("before_torch"), str(tmp_path / "done"))
    assert lines(done) == ["rank 0: False False", "rank 1: False True"]


SPAWNS = str(PROGRAMS / "recipes" / "spawns_by_default.py")


def test_a_program_alone_may_spawn_its_ranks_at_the_address_that_it_finds() -> None:
    """As it may under python and torchrun; and more than once, as under python."""
    shown = ok(run(*RUNNER, SPAWNS, str(free_port()))).stdout  # lines of two processes may mix
    assert [shown.count(f"{method} {rank}: sum 3") for method in ("forkserver", "spawn") for rank in (0, 1)] == [1] * 4


def test_several_ranks_may_not_spawn_ranks_at_one_address() -> None:
    done = runner(2, SPAWNS, str(free_port()))
    assert done.returncode == 1
    assert "has started a process that wants to be rank" in done.stderr


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """Programs with a package or module ``runner`` of their own, as they lie in a folder of projects."""
    package = tmp_path / "package" / "src" / "runner"  # no __init__.py
    package.mkdir(parents=True)
    (package / "options.py").write_text("def own(number):\n    return number + 1\n")
    (tmp_path / "package" / "train.py").write_text(PACKAGE)
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "runner.py").write_text("class Runner: ...\n")
    (tmp_path / "module" / "train.py").write_text(MODULE)
    return tmp_path


# A name that this package has, too, is imported in processes of each kind.
PACKAGE = """\
import multiprocessing, os, sys

sys.path.append(os.path.join(os.path.dirname(__file__), "src"))
from runner.options import own

def in_child(number):
    from runner import options
    return options.own(number)

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(in_child, [own(1)]))
"""

# The backend's modules are imported when the first group is made.
MODULE = """\
from runner import Runner
import sys
import torch, torch.distributed as dist

dist.init_process_group("mpi4py")
total = torch.ones(1)
dist.all_reduce(total)
print(total.item(), Runner.__module__, sys.modules["runner"].Runner is Runner)
dist.destroy_process_group()
"""


def test_a_program_may_have_a_package_of_this_ones_name(projects: Path) -> None:
    assert lines(run(*RUNNER, "package/train.py", cwd=projects)) == ["fork [3]", "spawn [3]"]


@pytest.mark.needs("mpi4py")
def test_a_program_may_have_a_module_of_this_ones_name(projects: Path) -> None:
    assert lines(runner(2, "module/train.py", cwd=projects)) == ["2.0 runner True"] * 2
