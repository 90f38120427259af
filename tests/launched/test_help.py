"""The help fits a screen, and help and messages name the command by which the runner was started."""

from __future__ import annotations

import re
import sys

import pytest

from runner.base.command_name import AS_MODULE, SCRIPT
from runner.base.settings import settings_in
from runner.options.job_settings import JobSettings
from runner.tools.registry import TOOLS
from runner.tools.supervise.supervise import _places_in
from tests.launching import CONSOLE, RUNNER, ok, run


@pytest.mark.parametrize(
    "way", [CONSOLE, [sys.executable, "-m", "mpi_scripts.console"], RUNNER], ids=["script", "its module", "module"]
)
def test_help_and_errors(way: list[str]) -> None:
    name, other = (AS_MODULE, SCRIPT) if way is RUNNER else (SCRIPT, AS_MODULE)
    text = ok(run(*way, "--help-all")).stdout
    assert text.startswith(f"usage: {name} [options] TARGET [arguments]\n")
    assert f"mpirun -np 4 {name} train.py" in text
    assert other not in text
    text = ok(run(*way, "top", "--help")).stdout
    assert text.startswith(f"usage: {name} top ")
    assert other not in text
    done = run(*way, "workloads.linear", "--no-such-thing")
    assert done.returncode == 2
    assert f"(see {name} workloads.linear --help)" in done.stderr


@pytest.mark.parametrize(
    ("line", "launcher", "options"),
    [
        ("mpirun -np 2 python -m runner --log-dir a x.py", "mpirun -np 2 python", "--log-dir a x.py"),
        ("mpirun -np 2 python -m mpi_scripts.console x.py", "mpirun -np 2 python", "x.py"),
        ("-- mpirun -np 2 torch-mpi-runner x.py -m runner", "mpirun -np 2", "x.py -m runner"),
        ("srun -n2 python .venv/bin/torch-mpi-runner x.py", "srun -n2 python", "x.py"),
        ("torch-mpi-runner", "", ""),
    ],
)
def test_supervise_finds_the_options(line: str, launcher: str, options: str) -> None:
    command = line.split()
    end, place = _places_in(command)
    assert (command[:end], command[place:]) == (launcher.split(), options.split())


def test_the_help_of_the_runner_fits_a_screen_and_has_all_tools_and_workloads() -> None:
    lines = ok(run(*RUNNER, "--help")).stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    first = [line.split()[0] for line in lines if line.startswith("  ")]
    assert {*TOOLS, "workloads.mnist", "workloads.llama"} <= {*first}


@pytest.mark.parametrize("workload", ["resnet", pytest.param("llama", marks=pytest.mark.needs("workloads.llama"))])
def test_the_help_of_a_workload_has_35_options_and_the_full_help_all(workload: str) -> None:
    def options(flag: str) -> set[str]:
        text = ok(run(*RUNNER, f"workloads.{workload}", flag)).stdout
        assert text.startswith(f"usage: python -m runner workloads.{workload} [options]\n")
        return {found[1] for line in text.splitlines() if (found := re.match(r"  (?:-h, )?(--[\w-]+)", line))}

    usual, full = options("--help"), options("--help-all")
    assert len(usual) <= 35
    assert usual < full
    assert {one.flag for one in settings_in(JobSettings).values() if not one.about.hidden} <= full
    assert not {"--began", "--no-compile"} & full
