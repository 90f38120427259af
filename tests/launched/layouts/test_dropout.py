"""Which ranks draw the same dropout masks: those that compute the same, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launching import ok
from tests.layouts import each_of, needing
from tests.results import losses
from tests.turns import Turns

JOB = ("drops", "--dtype=float64", "--global-batch-size=16", "--save-every=end")


def masks(turns: Turns, ranks: int, layout: str, folder: Path) -> list[dict[str, str]]:
    """Of each rank, by the dropout's name."""
    done = ok(turns(ranks, *JOB, "--max-steps=2", *layout.split(), f"--checkpoint-dir={folder}"))
    found: list[dict[str, str]] = json.loads(done.stdout.partition("masks ")[2])
    assert all(0 < mask.count("1") < len(mask) for of_one in found for mask in of_one.values())
    return found


@pytest.mark.needs("tp")
def test_tensor_parallel_ranks_draw_the_same_where_they_compute_the_same_only(turns: Turns, tmp_path: Path) -> None:
    first, second = masks(turns, 2, "--tp 2", tmp_path / "tp")
    assert all((first[name] == second[name]) == name.endswith("outside") for name in first)
    assert len({*first.values()}) == len(first)


@needing((2, "--tp 2 --sequence-parallel"))
def test_parts_of_a_sequence_draw_different_masks(turns: Turns, tmp_path: Path) -> None:
    by_sequence = masks(turns, 2, "--tp 2 --sequence-parallel", tmp_path / "sequence")
    assert all(by_sequence[0][name] != by_sequence[1][name] for name in by_sequence[0])


@needing((4, "--tp 2 --pp 2"), (4, "--strategy fsdp --tp 2"))
def test_stages_and_replicas_draw_different_masks(turns: Turns, tmp_path: Path) -> None:
    found = masks(turns, 4, "--tp 2 --pp 2 --micro-batches 2", tmp_path / "a")
    stages = [found[0], found[1]], [found[2], found[3]]
    for first, second in stages:
        assert all((first[name] == second[name]) == name.endswith("outside") for name in first)
    assert not {*found[0].values(), *found[1].values()} & {*found[2].values(), *found[3].values()}
    replicas = masks(turns, 4, "--strategy fsdp --tp 2", tmp_path / "b")
    assert not {*replicas[0].values(), *replicas[1].values()} & {*replicas[2].values(), *replicas[3].values()}


@each_of(
    (2, "--tp 2"),
    (2, "--tp 2 --sequence-parallel"),
    (2, "--pp 2 --micro-batches 4"),
    (2, "--pp 2 --pp-schedule interleaved1f1b"),
)
def test_activations_computed_again_and_a_resumed_run_have_the_same_masks(
    ranks: int, layout: str, turns: Turns, tmp_path: Path
) -> None:
    job = [*JOB, *layout.split()]
    ok(turns(ranks, *job, "--max-steps=4", f"--checkpoint-dir={tmp_path}/whole"))
    again = "--activation-checkpointing=full"
    ok(turns(ranks, *job, again, "--max-steps=2", f"--checkpoint-dir={tmp_path}/parts"))
    ok(turns(ranks, *job, again, "--max-steps=4", f"--checkpoint-dir={tmp_path}/parts", "--resume"))
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=1e-12)
