"""Parity notices what is no number."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.parity import __main__ as parity
from tests.programs.layouts.deviations import largest

ORDERS = [*itertools.permutations((0.0, 1e-12, math.nan))]


@pytest.mark.parametrize("deviations", ORDERS)
def test_a_deviation_that_is_no_number_is_the_largest(deviations: tuple[float, ...]) -> None:
    assert largest(deviations) == math.inf
    assert largest([2e-12, 1e-12]) == 2e-12


@pytest.mark.parametrize("deviations", ORDERS)
def test_parity_fails_where_a_part_is_no_number(deviations: tuple[float, ...]) -> None:
    found = dict(zip(("loss", "weights", "outputs"), deviations, strict=True))
    turns: Any = lambda *_, **__: subprocess.CompletedProcess([], 0, f"parity {json.dumps(found)}", "")  # noqa: E731  # as short as its use
    assert parity._deviation(turns, 2, "--strategy ddp", "float64") == math.inf


def test_parity_tries_a_failed_case_again(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for case, deviation in (("good", 1e-12), ("repaired", math.inf), ("repaired", 1e-13), ("bad", math.inf)):
        parity._note(results, case, deviation)
    assert parity._known(results) == {"good": 1e-12, "repaired": 1e-13}
