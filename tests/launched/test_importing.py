"""What is done around a module's import, in a process of its own."""

from __future__ import annotations

import sys

import pytest

from tests.launching import PROGRAMS, ok, run


@pytest.mark.parametrize("disabled", [[], ["disabled"]], ids=["enabled", "disabled"])
def test_the_collector_pauses_during_an_import_and_is_then_as_it_was(disabled: list[str]) -> None:
    done = ok(run(sys.executable, str(PROGRAMS / "environment" / "imports" / "without_collector.py"), *disabled))
    assert done.stdout.splitlines() == ["during False", "imported False", "broken", f"after {not disabled}"]


BESIDE = """\
import sys, types
from runner.torchrun.own_modules import hide_own_modules, own_module
hide_own_modules()
theirs = sys.modules["runner"] = types.ModuleType("runner")
seen = set()
sys.addaudithook(lambda event, _: seen.add(sys.modules["runner"] is theirs) if event == "exec" else None)
module = own_module("runner.guard.process.forks")
print(module.__name__, own_module(module.__name__) is module, seen, "runner.guard" in sys.modules)
"""


def test_the_runner_imports_its_modules_while_a_program_imports_its_own() -> None:
    done = ok(run(sys.executable, "-c", BESIDE))
    assert done.stdout == "runner.guard.process.forks True {True} False\n"
