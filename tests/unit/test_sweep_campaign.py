"""The sweep notices what fails."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.sweep import __main__ as sweep
from tests.campaigns.sweep.train import FAILS, REFUSED, TRAINS, described, judged


def _line(case: str, where: str, what: str) -> str:
    return "case " + json.dumps({"case": case, "where": where, "what": what, "detail": ""})


@pytest.mark.parametrize("ends", [1, TimeoutError(_line("linear", "ddp", "trains"))])
def test_the_sweep_fails_where_a_job_ends_early(ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*command: str, cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
        if command[-1] == "tests.campaigns.sweep.plans":
            return subprocess.CompletedProcess(
                command, 0, "\n".join(_line(case, "plan", "planned") for case in sweep.CASES), ""
            )
        if isinstance(ends, Exception):
            raise ends
        return subprocess.CompletedProcess(command, ends, _line("linear", "ddp", "trains"), "Traceback")

    page: list[str] = []
    monkeypatch.setattr(sweep, "run", run)
    monkeypatch.setattr(sweep, "put", lambda *words: page.append(words[-1]))
    monkeypatch.setattr(sys, "argv", ["sweep", "--without-compare"])
    assert sweep.main()
    assert "| linear | trains | FAILS (no result) | FAILS (no result) | planned |" in page[0]


@pytest.mark.parametrize(
    ("everyone", "what", "detail"),
    [
        ([(TRAINS, 1e-9), (TRAINS, 1e-8)], TRAINS, "1e-08 off"),
        ([(TRAINS, 0.0), (TRAINS, math.inf)], FAILS, "inf off"),
        ([(REFUSED, "why"), (REFUSED, "why")], REFUSED, "why"),
        ([(TRAINS, 1e-9), (REFUSED, "why")], FAILS, "on rank 1, not on all: refused: why"),
        ([(REFUSED, "why"), (FAILS, "ValueError: that")], FAILS, "on rank 1, not on all: FAILS: ValueError: that"),
    ],
)
def test_a_case_of_the_sweep_is_judged_by_all_ranks(everyone: list[Any], what: str, detail: str) -> None:
    assert judged(everyone, 1e-6) == (what, detail)


def test_an_error_without_a_text_is_described() -> None:
    assert described(AssertionError()) == "AssertionError: "
