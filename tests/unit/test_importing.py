"""What is done around a module's import, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.launching import ok, run

PROGRAM = """
import gc, sys
from runner.comm.importing import import_without_collector, when_imported
import_without_collector("slow", "broken")
when_imported("slow", lambda: print("imported", gc.isenabled()))
if {disabled}:
    gc.disable()
try:
    import slow, broken
except ValueError:
    print("broken")
print("after", gc.isenabled())
"""


@pytest.mark.parametrize("disabled", [False, True])
def test_the_collector_pauses_during_an_import_and_is_then_as_it_was(disabled: bool, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import gc\nprint('during', gc.isenabled())\n")
    (tmp_path / "broken.py").write_text("raise ValueError\n")
    done = ok(run(sys.executable, "-c", PROGRAM.format(disabled=disabled), cwd=tmp_path))
    assert done.stdout.splitlines() == ["during False", "imported False", "broken", f"after {not disabled}"]
