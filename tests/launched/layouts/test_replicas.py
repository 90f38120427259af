"""What is equal on several ranks is compared, however the model is sharded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok
from tests.layouts import case, each_of
from tests.results import refused
from tests.turns import Turns

JOB = ("divisible", "--max-steps", "4", "--check-replicas", "1", "--save-every", "end", "--checkpoint-dir")


@pytest.mark.parametrize(
    ("ranks", "layout", "flipped", "said"),
    [
        case(4, "--strategy ddp", "0.weight on 2", "0.weight differs on rank 2 ("),
        case(4, "--strategy fsdp --replicate 2", "0.weight on 1", "0.weight differs on ranks 1, 3 ("),
        case(4, "--strategy ddp --tp 2", "0.weight on 1", "0.weight differs on ranks 1, 3 ("),
        case(4, "--strategy ddp --tp 2", "4.weight on 2", "4.weight differs on ranks 0, 2 ("),  # which is not sharded
        case(4, "--strategy ddp --pp 2 --pp-schedule 1f1b", "4.weight on 3", "4.weight differs on ranks 2-3 ("),
    ],
)
def test_a_bit_that_flips_is_found(
    ranks: int, layout: str, flipped: str, said: str, turns: Turns, tmp_path: Path
) -> None:
    """The step's number tells that there was nothing to find before."""
    name, _, rank = flipped.split()
    done = turns(ranks, *JOB, str(tmp_path), *layout.split(), "--flip", name, "--on", rank)
    assert done.returncode == 1
    assert f"--check-replicas: {said}" in done.stderr
    assert "after step 2;" in done.stderr


@each_of((4, "--strategy fsdp"), (4, "--strategy fsdp --tp 2"), (4, "--strategy ddp --pp 2 --tp 2"))
def test_that_nothing_is_compared_is_said(ranks: int, layout: str, turns: Turns, tmp_path: Path) -> None:
    done = ok(turns(ranks, *JOB, str(tmp_path), *layout.split()))
    assert "--check-replicas: no two ranks have the same part of the model here, so nothing" in done.stdout


def test_local_sgd_is_refused(turns: Turns, tmp_path: Path) -> None:
    job = turns(4, *JOB, str(tmp_path), "--strategy", "local-sgd", "--sync-every", "2")
    refused(job, "--check-replicas: the replicas are equal only every 2 steps")
