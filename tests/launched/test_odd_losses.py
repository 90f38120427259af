"""Losses and metrics that do not fit, on all ranks or on one, are one line each; and ranks without samples take part."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import folder_of, ok, runner
from tests.layouts import FSDP
from tests.results import losses, refused
from tests.turns import Turns


@pytest.mark.parametrize("strategy", ["ddp", FSDP, "zero1"])
@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("pair", "the loss of a batch is one number on rank 0 and a pair (sum, weight) on rank 1; return one form"),
        ("NaN", "the weights of all ranks add up to nan in the first step; return (sum, weight)"),
        ("negative", "the weights of all ranks add up to -8 in the first step; return (sum, weight)"),
        ("nothing counts", "the weights of all ranks add up to 0 in the first step; return (sum, weight)"),
        ("strange", "the optimizer has parameters that are not the model's (of shape [2])"),
        ("metrics", "the task's metrics are metric_0 on rank 0, metric_1 on rank 1; give all ranks the same"),
    ],
)
def test_what_all_ranks_find(case: str, text: str, strategy: str, turns: Turns, tmp_path: Path) -> None:
    refused(turns(2, "odd_losses", f"--case={case}", f"--strategy={strategy}", f"--checkpoint-dir={tmp_path}"), text)


@pytest.mark.parametrize(
    ("case", "strategy", "text"),
    [
        ("vector", "ddp", ": the loss of a batch is float32 [4], and has to be one real number"),
        ("later", "ddp", ": the loss of a batch is a pair (sum, weight), and was one number in those before; return"),
        ("later", "local-sgd", "the loss of a batch is a pair (sum, weight), and was one number in those before"),
        ("NaN", "local-sgd", "the weights of a batch add up to nan; return (sum, weight)"),
    ],
)
def test_what_one_rank_finds_ends_the_others(case: str, strategy: str, text: str, tmp_path: Path) -> None:
    options = [f"--case={case}", f"--strategy={strategy}", f"--checkpoint-dir={tmp_path}"]
    refused(runner(2, "odd_losses", *options, cwd=folder_of("odd_losses")), "rank 1 of 2 on host ", text)


@pytest.mark.parametrize("strategy", ["ddp", "local-sgd"])
def test_the_loss_of_a_step_in_which_a_rank_has_no_sample(strategy: str, turns: Turns, tmp_path: Path) -> None:
    """Of nine samples the second step has one. The weights stay as they are."""
    options = ["odd_losses", "--samples=9", "--lr=1e-12", "--global-batch-size=8", "--dtype=float64"]
    found = []
    for ranks in (1, 2):
        ok(turns(ranks, *options, f"--strategy={strategy}", f"--checkpoint-dir={tmp_path}/{ranks}"))
        found.append(losses(tmp_path / str(ranks)))
    assert len(found[0]) == 2
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("backend", ["gloo", "mpi4py"])
def test_a_parameter_that_one_rank_does_not_use_is_named(backend: str, tmp_path: Path) -> None:
    options = ["--case=unused", f"--backend={backend}", "--max-steps=3", f"--checkpoint-dir={tmp_path}"]
    done = runner(2, "odd_losses", *options, cwd=folder_of("odd_losses"))
    assert done.returncode == 1
    assert ": no gradient of shift in this step, and the other ranks wait" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_backward_pass_that_exchanges_nothing_is_refused(strategy: str, turns: Turns, tmp_path: Path) -> None:
    options = ["--case=past the wrapper", f"--strategy={strategy}", f"--checkpoint-dir={tmp_path}"]
    refused(turns(2, "odd_losses", *options), "the ranks' gradients are not averaged: the loss of the last backward()")


@pytest.mark.parametrize("strategy", ["ddp", FSDP, "zero1", "local-sgd"])
@pytest.mark.parametrize("case", ["thaws", "by position", "plain"])
def test_two_ranks_train_as_one(case: str, strategy: str, turns: Turns, tmp_path: Path) -> None:
    """Layers that are trained later, samples of different weights, and a last step in which ranks have 4 and 3 samples."""
    options = ["odd_losses", f"--case={case}", "--samples=31", "--global-batch-size=8", "--epochs=2", "--dtype=float64"]
    sync = ["--sync-every=1"] if strategy == "local-sgd" else []
    found = []
    for ranks in (1, 2):
        where = f"--checkpoint-dir={tmp_path}/{ranks}"
        ok(turns(ranks, *options, f"--strategy={strategy}", *sync, where))
        found.append(losses(tmp_path / str(ranks)))
    assert len(found[0]) == 8
    assert found[1] == pytest.approx(found[0], rel=1e-9)
