"""A backend of another package: known by its entry point alone, it is used and shown wherever the runner's own are."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.launching import PROGRAMS, ROOT, ok, runner
from tests.results import refused

PATH = os.pathsep.join(
    [str(PROGRAMS / "extensions" / "other_backend"), str(ROOT)]
)  # a PYTHONPATH with a package that has the entry point


def test_a_backend_of_another_package(tmp_path: Path) -> None:
    assert ok(runner(2, "--backend", "pigeon", "sums_ones", cwd=tmp_path, PYTHONPATH=PATH)).stdout == "pigeon 2.0\n"
    (check,) = json.loads(ok(runner(2, "doctor", "--json", "--only", "Pigeon", PYTHONPATH=PATH)).stdout)["checks"][1:]
    assert (check["name"], check["status"], check["detail"]) == ("Pigeon", "ok", "one per rank")
    options = ["--min", "4K", "--max", "4K", "--rounds", "1", "--json", "found"]
    ok(runner(2, "bench", "allgather", "--backend", "gloo,pigeon", *options, cwd=tmp_path, PYTHONPATH=PATH))
    found = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert [(m["backend"], m["wrong"]) for m in found] == [("gloo", 0), ("pigeon", 0)]


def test_why_it_cannot_be_used_is_said(tmp_path: Path) -> None:
    for target in (["--backend", "pigeon", "sums_ones"], ["bench", "--backend", "pigeon"]):
        done = runner(2, *target, cwd=tmp_path, PYTHONPATH=PATH, CAT="a cat is about")
        refused(done, "--backend pigeon: a cat is about")
