"""Help and messages name the command by which the runner was started."""

from __future__ import annotations

import sys

import pytest

from runner.base.command_name import AS_MODULE, SCRIPT
from runner.base.errors import UsageError
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


def test_supervise_refuses_what_starts_no_runner() -> None:
    with pytest.raises(UsageError, match="does not start a runner"):
        _places_in(["mpirun", "-np", "2", "python", "-m", "runners", "x.py"])
