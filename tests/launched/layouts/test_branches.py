"""Ranks that do not call the same modules of a model are told so, where the strategy needs that they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ROOT, folder_of, ok, own_lines, runner
from tests.layouts import each_of, needing
from tests.results import losses
from tests.turns import Turns

JOB = ("branches", "--dtype=float64", "--global-batch-size=16", "--max-steps=4", "--save-every=end")


@pytest.mark.needs("fsdp")
@pytest.mark.parametrize(
    ("by", "layout", "told"),
    [
        (
            "rank",
            "--strategy fsdp",
            "call different units of the sharded model: layers.1 on rank 0, layers.0 on rank 1",
        ),
        ("random", "--strategy fsdp", ": layers."),
        ("random", "--strategy fsdp --micro-batches 2 --activation-checkpointing full", ": layers."),
    ],
)
def test_ranks_that_call_different_units_are_named(
    by: str, layout: str, told: str, turns: Turns, tmp_path: Path
) -> None:
    done = turns(2, *JOB, *layout.split(), f"--by={by}", f"--checkpoint-dir={tmp_path}")
    assert done.returncode == 1
    assert told in done.stderr
    assert not (tmp_path / "metrics.jsonl").exists() or not losses(tmp_path)  # it was the first step


@needing((4, "--pp 2 --micro-batches 4"))
def test_ranks_of_one_stage_that_call_different_units_are_named(tmp_path: Path) -> None:
    """In a job of its own: the other stage waits for this one, and is ended with it."""
    layout = ["--pp", "2", "--micro-batches", "4", "--by=rank", f"--checkpoint-dir={tmp_path}"]
    done = runner(4, *JOB, *layout, cwd=folder_of("branches"), PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert ": layers.1 on rank 0" in done.stderr


@each_of((2, "--strategy ddp --allowed"), (2, "--strategy zero1 --allowed"), (2, "--strategy fsdp"))
def test_a_branch_that_all_ranks_take_alike_is_trained(ranks: int, layout: str, turns: Turns, tmp_path: Path) -> None:
    for number, options in ((1, "--allowed"), (ranks, layout)):
        ok(turns(number, *JOB, *options.split(), "--by=common", f"--checkpoint-dir={tmp_path}/{number}"))
    assert losses(tmp_path / f"{ranks}") == pytest.approx(losses(tmp_path / "1"), rel=1e-9)


def test_under_ddp_a_task_can_allow_it(turns: Turns, tmp_path: Path) -> None:
    ok(turns(2, *JOB, "--by=rank", "--allowed", f"--checkpoint-dir={tmp_path}/allowed"))
    done = turns(2, *JOB, "--by=rank", f"--checkpoint-dir={tmp_path}/not")
    assert done.returncode == 1
    for line in own_lines(done):  # of one rank, or of both
        assert "no gradient of layers." in line
        assert " in this step, and the other ranks wait for it; let the loss depend" in line
    assert own_lines(done)
