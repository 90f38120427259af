"""A rank that keeps the others waiting is named once, and in a clean run nobody is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launching import ok, path_of, runner
from tests.turns import Turns


def named(output: str) -> list[str]:
    """The ranks that it says keep the others waiting."""
    return re.findall(r"^rank (\d) on host \S+ keeps the others waiting: \d+ ms in a step", output, re.MULTILINE)


@pytest.mark.parametrize("late", [0, 60])
def test_it_is_named(late: int, turns: Turns, tmp_path: Path) -> None:
    job = ["faulty", "--checkpoint-dir", str(tmp_path), "--save-every", "end", "--max-steps", "64", "--batch-size", "4"]
    done = ok(turns(2, *job, "--milliseconds", "1", "--late", str(late)))
    assert named(done.stdout) == (["1"] if late else [])


def test_it_is_named_in_a_loop_of_ones_own_with_two_models(tmp_path: Path) -> None:
    options = ["--wrong", "late", "--epochs", "8", "--log-every", "4"]
    assert named(ok(runner(2, path_of("own_loop"), *options, cwd=tmp_path)).stdout) == ["1"]
