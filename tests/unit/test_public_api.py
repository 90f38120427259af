"""What ``import runner`` gives, which is kept from one version to the next."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import runner
from tests.launching import ROOT

NAMES = [
    "LoggedRun",
    "Logger",
    "Model",
    "Plan",
    "Preempted",
    "Result",
    "Run",
    "RunnerError",
    "Settings",
    "State",
    "Task",
    "UsageError",
    "option",
    "start",
]


def test_the_names() -> None:
    assert sorted(runner.__all__) == sorted([*NAMES, "__version__"])
    assert {*NAMES} <= {*dir(runner)}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_documented_and_typed(name: str) -> None:
    assert getattr(runner, name).__doc__
    types = (ROOT / "runner" / "__init__.pyi").read_text()
    found = re.search(rf"^from (\S+) import {name} as {name}$", types, re.M)
    assert found is not None
    assert getattr(runner, name) is getattr(sys.modules[found[1]], name)


def test_another_name_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        _ = runner.fit  # type: ignore[attr-defined]  # is refused


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys, runner, runner.cli, runner.starting.dispatch, runner.training.settings\n"
    code += "print([name for name in ('torch', 'numpy', 'mpi4py') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"
