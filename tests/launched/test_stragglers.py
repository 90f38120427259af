"""A rank that keeps the others waiting is named once, and in a clean run nobody is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launching import ok
from tests.turns import Turns


@pytest.mark.parametrize("late", [0, 60])
def test_it_is_named(late: int, turns: Turns, tmp_path: Path) -> None:
    job = ["faulty", "--checkpoint-dir", str(tmp_path), "--save-every", "end", "--max-steps", "64", "--batch-size", "4"]
    done = ok(turns(2, *job, "--milliseconds", "1", "--late", str(late)))
    named = re.findall(
        r"^rank (\d) on host \S+ keeps the others waiting: (\d+) ms in a step", done.stdout, re.MULTILINE
    )
    assert [rank for rank, _ in named] == (["1"] if late else [])
