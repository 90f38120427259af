"""Metrics of torchmetrics: their values are those of one rank with all test data, to the last digit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.launching import ok
from tests.layouts import FSDP
from tests.results import refused
from tests.turns import Turns


def values(done: subprocess.CompletedProcess[str]) -> str:
    return next(line for line in done.stdout.splitlines() if line.startswith("area="))


# Evaluations take batches of 256: of 301 samples the ranks have 151 and 150, of 1023 batches of 256, 256 and of 256, 255, of 513
# two batches and one, and of 3 the last of four ranks has none.
@pytest.mark.parametrize("strategy", ["ddp", FSDP])
@pytest.mark.parametrize(("ranks", "samples"), [(2, 301), (2, 1023), (2, 513), (4, 3)])
def test_they_count_each_sample_of_all_ranks_once(
    ranks: int, samples: int, strategy: str, turns: Turns, tmp_path: Path
) -> None:
    options = ["torch_metrics", f"--samples={samples}", "--batch-size=8"]
    one = values(ok(turns(1, *options, f"--checkpoint-dir={tmp_path}/one")))
    names = [part.partition("=")[0] for part in one.split()]
    assert names == ["area", "both_binned", "both_f1", "found", "ranks", "right"]
    done = ok(turns(ranks, *options, f"--strategy={strategy}", f"--checkpoint-dir={tmp_path}/more"))
    assert values(done) == one
    assert "was called before" not in done.stderr


def test_lists_of_numbers_that_cannot_be_gathered_are_refused(turns: Turns, tmp_path: Path) -> None:
    done = turns(2, "torch_metrics", "--samples=301", "--scalars", f"--checkpoint-dir={tmp_path}")
    refused(done, "the metric scalars keeps single numbers (each), and the ranks have different counts of them")
