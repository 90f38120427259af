"""What a user gives, a model's modes and dtypes and a loss, is used as it is under every strategy; or one line refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok
from tests.layouts import case
from tests.results import metrics
from tests.turns import Turns, turns_fixture

turns = turns_fixture("module")


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        case(2, "--precision bf16"),
        case(2, "--precision fp16 --micro-batches 2"),
        case(2, "--precision bf16 --strategy zero1"),
        case(2, "--precision bf16 --strategy fsdp"),
        case(2, "--precision bf16 --strategy local-sgd"),
        case(2, "--precision bf16 --tp 2"),
        case(2, "--precision bf16 --pp 2"),
    ],
)
def test_an_evaluation_has_the_loss_of_a_step(ranks: int, options: str, turns: Turns, tmp_path: Path) -> None:
    """So has a metric that computes the same."""
    ok(turns(ranks, "as_given", f"--checkpoint-dir={tmp_path}", *options.split()))
    (found,) = metrics(tmp_path)
    assert found["val_loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert found["val_ce"] == pytest.approx(found["loss"], rel=1e-6)
