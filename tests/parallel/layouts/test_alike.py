"""All ranks begin with rank 0's model, whatever each has made itself, and however it is divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok
from tests.results import losses, refused
from tests.turns import Turns

JOB = ("begins_by_rank", "--dtype=float64", "--global-batch-size=16", "--max-steps=3", "--save-every=0")
LAYOUTS = {
    2: (
        "--strategy ddp",
        "--strategy fsdp",
        "--strategy zero1",
        "--strategy local-sgd --sync-every 1",
        "--tp 2",
        "--pp 2",
    ),
    4: ("--strategy fsdp --replicate 2", "--strategy fsdp --tp 2", "--tp 2 --pp 2", "--strategy fsdp --pp 2"),
}


@pytest.mark.parametrize("by", ["model", "factory"])
def test_the_losses_are_those_of_rank_0s_model(by: str, turns: Turns, tmp_path: Path) -> None:
    """One rank, whose model is rank 0's, is the reference."""
    ok(turns(1, *JOB, f"--by={by}", f"--checkpoint-dir={tmp_path}/one"))
    for ranks, layouts in LAYOUTS.items():
        for layout in layouts:
            folder = tmp_path / f"{ranks}{layout}"
            ok(turns(ranks, *JOB, *layout.split(), f"--by={by}", f"--checkpoint-dir={folder}"))
            assert losses(folder) == pytest.approx(losses(tmp_path / "one"), rel=1e-9), layout


@pytest.mark.parametrize(
    ("by", "layout", "told"),
    [
        ("shape", "--strategy fsdp", "the parameter 0.weight is [64, 16] on rank 0, [65, 16] on rank 1"),
        (
            "environment",
            "--tp 2",
            "the weights by reset_parameters() are not the same on all ranks: 3.0.weight differs",
        ),
        ("weights", "--strategy fsdp", "the weights are not the same on all ranks: 0.bias and "),
    ],
)
def test_what_cannot_be_made_alike_is_refused(by: str, layout: str, told: str, turns: Turns, tmp_path: Path) -> None:
    refused(turns(2, *JOB, *layout.split(), f"--by={by}", f"--checkpoint-dir={tmp_path}"), told)
