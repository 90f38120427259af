"""The commands that measure, each for a moment: that they run, not what they find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ROOT, ok
from tests.turns import Turns, turns_fixture

COMMANDS = {
    "loop": ["--rounds", "1", "--max-steps", "2", "--batch-size", "2"],
    "loop --strategy fsdp": ["--strategy", "fsdp", "--rounds", "1", "--max-steps", "2", "--batch-size", "2"],
    "checkpoint": ["--rounds", "1", "--batch-size", "2"],
    "pipeline": ["--rounds", "1", "--micro-batches", "2", "--milliseconds", "1"],
}
NEEDED = {"loop --strategy fsdp": ("fsdp",), "pipeline": ("pp",)}

turns = turns_fixture("module", PYTHONPATH=str(ROOT))


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.needs(*NEEDED.get(name, ()))) for name in COMMANDS]
)
def test_a_command_that_measures(command: str, turns: Turns, tmp_path: Path) -> None:
    module = f"tests.campaigns.speed.{command.partition(' ')[0]}"
    done = ok(turns(2, module, *COMMANDS[command], cwd=tmp_path))
    assert any(figures in done.stdout for figures in ("ms per step", " ÷ ", "  ratio "))
    assert not list(tmp_path.iterdir())
