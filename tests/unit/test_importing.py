"""What is done around a module's import, in a process of its own."""

from __future__ import annotations

import sys

import pytest

from tests.launching import PROGRAMS, ok, run


@pytest.mark.parametrize("disabled", [[], ["disabled"]], ids=["enabled", "disabled"])
def test_the_collector_pauses_during_an_import_and_is_then_as_it_was(disabled: list[str]) -> None:
    done = ok(run(sys.executable, str(PROGRAMS / "environment" / "imports" / "without_collector.py"), *disabled))
    assert done.stdout.splitlines() == ["during False", "imported False", "broken", f"after {not disabled}"]
