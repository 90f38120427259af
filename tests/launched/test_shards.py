"""Checkpoints in parts: every layout reads what every other has written, of any torch; and what is missing is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from runner.training.checkpoint import shards
from tests.launching import ROOT, ok
from tests.programs.training import exact
from tests.turns import Turns, turns_fixture

OLD = ROOT / "tests" / "data" / "checkpoints"

turns = turns_fixture("module")


@pytest.mark.needs("fsdp")
def test_every_layout_reads_what_every_other_has_written(turns: Turns, tmp_path: Path) -> None:
    """With empty tensors, ranks without a part, tied weights, parts with gaps, scalars."""
    ok(turns(4, "parts", str(tmp_path)))


@pytest.mark.needs("fsdp")
@pytest.mark.parametrize(
    ("what", "told"), [("lost", r"\(.* odd .*\(6, 6\).*\(7, 6\)\)"), ("torn", r"\(the shards of .*\)")]
)
def test_a_part_that_is_missing_is_told(what: str, told: str, turns: Turns, tmp_path: Path) -> None:
    """And never read as what happens to be in memory."""
    done = ok(turns(4, "parts", str(tmp_path), what))
    assert len(re.findall(f" {told}$", done.stdout, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("strategy", "written"),
    [
        ("zero1", "torch-2.9.1-fsdp"),
        pytest.param("fsdp", "torch-2.4.1-zero1", marks=pytest.mark.needs("fsdp")),
        pytest.param("fsdp", "torch-2.9.1-ddp", marks=pytest.mark.needs("fsdp")),
    ],
)
def test_a_checkpoint_of_another_torch_is_gone_on_from(
    strategy: str, written: str, turns: Turns, tmp_path: Path
) -> None:
    options = ["--resume", str(OLD / written), "--strategy", strategy, "--max-steps", "4"]
    done = ok(turns(2, "exact", "--checkpoint-dir", str(tmp_path), *options))
    assert f"{OLD / written}, step 2" in done.stdout
    found = shards.read_full(tmp_path / "step-4")
    torch.testing.assert_close(found, exact.tensors_after(4), rtol=0, atol=0)
