"""Environments that lack packages: what needs them is refused in one line, and the rest runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import BASE_PYTHON, mpirun, ok, packages_without, path_of, run
from tests.results import refused

RUNNER = (BASE_PYTHON, "-m", "runner")
EXTRAS = "torchvision sklearn scikit_learn matplotlib tensorboard mlflow wandb"


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with the packages that pyproject.toml requires, and without extras."""
    return packages_without(EXTRAS, tmp_path_factory.mktemp("lean"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One with what a script needs, and little more."""
    missing = f"{EXTRAS} rich safetensors pynvml nvidia_ml"
    return packages_without(missing, tmp_path_factory.mktemp("bare"))


def test_a_script_needs_torch_mpi4py_and_psutil(bare: str) -> None:
    done = ok(mpirun(2, *RUNNER, path_of("ddp_training"), PYTHONPATH=bare))
    assert done.stdout.count("steps 16 same True") == 2, done.stdout


def test_the_main_job_runs_on_its_own_digits(lean: str, tmp_path: Path) -> None:
    done = ok(mpirun(2, *RUNNER, "workloads.mnist", "--max-steps", "5", cwd=tmp_path, PYTHONPATH=lean))
    (line,) = [line for line in done.stdout.splitlines() if "torchvision" in line]
    assert line.startswith("MNIST ")
    assert "pip install torchvision==0." in line
    assert "1,797 digits" in line
    assert "done: 5 steps" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "who", "extra"),
    [
        (["workloads.mnist", "--data", "mnist"], "MNIST", "torchvision"),
        (["workloads.resnet"], "workloads.resnet", "torchvision"),
        (["workloads.linear", "--logger", "wandb:a"], "--logger wandb", "wandb"),
    ],
    ids=str,
)
def test_what_needs_an_extra_names_it(lean: str, tmp_path: Path, arguments: list[str], who: str, extra: str) -> None:
    refused(mpirun(2, *RUNNER, *arguments, cwd=tmp_path, PYTHONPATH=lean), who, f"pip install {extra}")


@pytest.mark.parametrize(("command", "who"), [("scale --plot both.png study.json", "--plot"), ("report .", "report")])
def test_what_plots_needs_matplotlib(command: str, who: str, lean: str, tmp_path: Path) -> None:
    done = run(*RUNNER, *command.split(), cwd=tmp_path, PYTHONPATH=lean)
    refused(done, f"{who} needs matplotlib, which is not installed; pip install matplotlib")


def test_a_torchvision_that_does_not_fit_on_one_rank(tmp_path: Path) -> None:
    """As a host with another torch's: its extension lacks a symbol, so an operator is not there."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        "    raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    path = packages_without("", tmp_path / "all")
    done = mpirun(2, *RUNNER, "workloads.resnet", cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{path}")
    refused(done, "RuntimeError: operator torchvision::nms does not exist", "pip install")


@pytest.mark.parametrize(("target", "package"), [("workloads.mnist", "safetensors"), ("explain", "rich")], ids=str)
def test_what_the_package_requires_is_named_too(bare: str, tmp_path: Path, target: str, package: str) -> None:
    refused(mpirun(2, *RUNNER, target, cwd=tmp_path, PYTHONPATH=bare), f"pip install {package}")


def test_without_psutil_nothing_starts(tmp_path: Path) -> None:
    path = packages_without("psutil", tmp_path / "packages")
    refused(mpirun(2, *RUNNER, "explain", PYTHONPATH=path), "pip install psutil")
