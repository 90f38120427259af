"""A backend of another package: known by its entry point alone, it is used and shown wherever the runner's own are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.launching import ROOT, ok, own_lines, runner

PIGEON = '''
"""gloo by another name, and with a library's manners: it is registered when torch is imported, and takes turns."""

import contextlib, os, sys

from runner.comm.backend import Backend, Finding
from runner.comm.importing import when_imported

MODULE = "torch.distributed.distributed_c10d"


class Pigeon(Backend):
    name = "pigeon"
    title = "Pigeon"

    def unavailable_reason(self, job):
        return os.environ.get("CAT", "")

    def prepare(self, job):
        def register():
            import torch.distributed as dist

            def create(store, rank, size, timeout):
                return dist.ProcessGroupGloo(store, rank, size, timeout)

            dist.Backend.register_backend("pigeon", create, devices=["cpu"])

        when_imported("torch.distributed", register)

    def examine(self, job):
        return Finding("one per rank")
'''


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PYTHONPATH with a package that has the entry point."""
    (tmp_path / "pigeon.py").write_text(PIGEON)
    (tmp_path / "pigeon-1.0.dist-info").mkdir()
    (tmp_path / "pigeon-1.0.dist-info" / "METADATA").write_text("Name: pigeon\nVersion: 1.0\n")
    (tmp_path / "pigeon-1.0.dist-info" / "entry_points.txt").write_text("[runner.backends]\npigeon = pigeon:Pigeon\n")
    (tmp_path / "which.py").write_text(
        "import torch, torch.distributed as dist\n"
        "def main(run, argv):\n"
        "    total = torch.ones(1)\n    dist.all_reduce(total)\n    run.say(f'{dist.get_backend()} {total.item()}')\n"
    )
    return os.pathsep.join([str(tmp_path), str(ROOT)])


def test_a_backend_of_another_package(path: str, tmp_path: Path) -> None:
    assert ok(runner(2, "--backend", "pigeon", "which", cwd=tmp_path, PYTHONPATH=path)).stdout == "pigeon 2.0\n"
    (check,) = json.loads(ok(runner(2, "doctor", "--json", "--only", "Pigeon", PYTHONPATH=path)).stdout)["checks"][1:]
    assert (check["name"], check["status"], check["detail"]) == ("Pigeon", "ok", "one per rank")
    options = ["--min", "4K", "--max", "4K", "--rounds", "1", "--json", "found"]
    ok(runner(2, "bench", "allgather", "--backend", "gloo,pigeon", *options, cwd=tmp_path, PYTHONPATH=path))
    found = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert [(m["backend"], m["wrong"]) for m in found] == [("gloo", 0), ("pigeon", 0)]


def test_why_it_cannot_be_used_is_said(path: str, tmp_path: Path) -> None:
    for target in (["--backend", "pigeon", "which"], ["bench", "--backend", "pigeon"]):
        done = runner(2, *target, cwd=tmp_path, PYTHONPATH=path, CAT="a cat is about")
        assert done.returncode == 2
        (line,) = own_lines(done)
        assert "--backend pigeon: a cat is about" in line
