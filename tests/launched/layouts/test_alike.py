"""All ranks begin with rank 0's model, whatever each has made itself, and however it is sharded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok
from tests.layouts import case, each_of
from tests.results import losses, refused
from tests.turns import Turns

JOB = ("begins_by_rank", "--dtype=float64", "--global-batch-size=16", "--max-steps=3", "--save-every=end")
LAYOUTS = (
    (2, "--strategy ddp"),
    (2, "--strategy fsdp"),
    (2, "--strategy local-sgd --sync-every 1"),
    (2, "--tp 2"),
    (2, "--pp 2"),
    (4, "--strategy fsdp --replicate 2"),
    (4, "--strategy fsdp --tp 2"),
    (4, "--tp 2 --pp 2"),
)


@pytest.fixture(scope="module")
def expected(turns: Turns, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of one rank, whose model is rank 0's."""
    folder = tmp_path_factory.mktemp("one")
    for by in ("model", "factory"):
        ok(turns(1, *JOB, f"--by={by}", f"--checkpoint-dir={folder}/{by}"))
    return {by: losses(folder / by) for by in ("model", "factory")}


@pytest.mark.parametrize("by", ["model", "factory"])
@each_of(*LAYOUTS)
def test_the_losses_are_those_of_rank_0s_model(
    ranks: int, layout: str, by: str, expected: dict[str, list[float]], turns: Turns, tmp_path: Path
) -> None:
    ok(turns(ranks, *JOB, *layout.split(), f"--by={by}", f"--checkpoint-dir={tmp_path}"))
    assert losses(tmp_path) == pytest.approx(expected[by], rel=1e-9)


@pytest.mark.parametrize(
    ("ranks", "layout", "by", "told"),
    [
        case(2, "--strategy fsdp", "shape", "models that differ: rank 0 has 0.weight "),
        case(2, "--tp 2", "environment", "by reset_parameters() are not the same on all ranks: 3.0.weight differs"),
        case(2, "--strategy fsdp", "weights", "the weights are not the same on all ranks: 0.bias and "),
    ],
)
def test_what_cannot_be_made_alike_is_refused(
    ranks: int, layout: str, by: str, told: str, turns: Turns, tmp_path: Path
) -> None:
    refused(turns(ranks, *JOB, *layout.split(), f"--by={by}", f"--checkpoint-dir={tmp_path}"), told)
