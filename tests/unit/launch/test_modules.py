"""Of two packages workloads the one that has the module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.launch.modules import import_workload, module_file, workload_names
from runner.torchrun.own_modules import find_first_workloads
from tests.launching import ROOT

OURS = ROOT / "workloads"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, first on the path, and nothing of workloads imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), *sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "workloads"}
    for name in before:
        del sys.modules[name]
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "workloads"]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.parametrize("is_package", [False, True])
def test_a_module_is_that_of_the_first_folder_that_has_it(
    folder: Path, is_package: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    own = folder / "workloads"
    own.mkdir()
    (own / "mnist.py").write_text("from workloads.beside import whose\n")
    (own / "beside.py").write_text("whose = 'theirs'\n")
    if is_package:
        (own / "__init__.py").write_text("")
    assert module_file("workloads.mnist", run_as_main=False) == own / "mnist.py"
    assert module_file("workloads.linear", run_as_main=False) == OURS / "linear.py"
    assert module_file("workloads.none", run_as_main=False) is None
    assert {"workloads.beside", "workloads.mnist", "workloads.linear"} <= {*workload_names()}
    assert import_workload("workloads.mnist").whose == "theirs"
    line = "runner: ./workloads hides the runner's own workloads: workloads.mnist is ./workloads/mnist.py\n"
    assert capfd.readouterr().err == line
    assert import_workload("workloads.beside").whose == "theirs"
    assert capfd.readouterr().err == ""  # there is none of ours


def test_a_folder_of_modules_goes_before_a_package_that_is_later_on_the_path(folder: Path) -> None:
    (folder / "workloads").mkdir()
    (folder / "workloads" / "beside.py").write_text("whose = 'theirs'\n")
    find_first_workloads()
    import workloads.beside

    assert workloads.beside.whose == "theirs"  # type: ignore[attr-defined]  # the test has written it


def test_a_folder_without_modules_hides_nothing(folder: Path) -> None:
    (folder / "workloads").mkdir()
    (folder / "workloads" / "mnist.yaml").write_text("")
    find_first_workloads()
    import workloads.linear

    assert workloads.linear.__file__ == str(OURS / "linear.py")
