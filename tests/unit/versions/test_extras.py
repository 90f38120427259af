"""What is said of a package that is missing or does not load, and which torchvision fits which torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.versions.extras import require, torchvision_for
from tests.launching import BASE_PYTHON, ROOT, ok, run


@pytest.mark.parametrize(
    ("torch", "torchvision"),
    [  # as the wheels of torchvision require it: ==, and from 0.29.1 on torch>=2.14.0
        ("2.4.0", "0.19.0"),
        ("2.4.1", "0.19.1"),
        ("2.12.0", "0.27.0"),
        ("2.14.1", "0.29.1"),
        ("2.15.0", "0.29.2"),
        ("2.6.0+cu124", "0.21.0"),
        ("2.16.0", ""),
        ("3.0.0", ""),
        ("2.6.0a0+git1234567", ""),
        ("", ""),
    ],
)
def test_the_torchvision_that_fits_a_torch(torch: str, torchvision: str) -> None:
    assert torchvision_for(torch) == torchvision


def install(folder: Path, package: str, version: str, text: str = "") -> None:
    """A package as pip leaves it."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(text)
    (folder / package / "version.py").write_text(f"__version__ = '{version}'\n")
    information = folder / f"{package}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def said(folder: Path) -> str:
    """What is said of a torchvision in an environment of these packages only."""
    code = "from runner.versions.extras import problem_of; print(problem_of('torchvision', 'workloads.resnet'))"
    return ok(run(BASE_PYTHON, "-c", code, PYTHONPATH=f"{folder}:{ROOT}")).stdout.strip()


NEEDS = "workloads.resnet needs torchvision, "


@pytest.mark.parametrize(
    ("torch", "line"),
    [
        ("2.6.0", "which is not installed; pip install torchvision==0.21.0"),
        ("2.16.0", "which is not installed; pip install torchvision"),
        (
            "2.6.0+cpu",
            "which is not installed; pip install torchvision==0.21.0, with the --index-url that torch 2.6.0+cpu is from",
        ),
    ],
)
def test_a_torchvision_that_is_missing(tmp_path: Path, torch: str, line: str) -> None:
    install(tmp_path, "torch", torch)
    assert said(tmp_path) == NEEDS + line


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("0.20.1", "pip install torchvision==0.21.0"),
        ("0.21.0", "pip install --force-reinstall --no-deps torchvision==0.21.0"),
    ],
)
def test_a_torchvision_that_does_not_load(tmp_path: Path, version: str, command: str) -> None:
    install(tmp_path, "torch", "2.6.0")
    install(tmp_path, "torchvision", version, "import pillow_is_missing")
    why = "ModuleNotFoundError: No module named 'pillow_is_missing'"
    assert said(tmp_path) == f"{NEEDS}and torchvision {version} does not load beside torch 2.6.0 ({why}); {command}"


def test_one_that_loads_is_no_problem(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.6.0")
    install(tmp_path, "torchvision", "0.20.1")
    assert said(tmp_path) == "None"


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        require("psutil", "nothing_like_this", "nor_like_that")
    names = "nothing_like_this and nor_like_that"
    assert str(caught.value) == f"{names} are not installed; pip install {names.replace(' and', '')}"
