"""The examples of docs/train/examples: the same losses on any number of ranks, however they are started, and resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from runner.training.checkpoint.shards import read_full
from tests.launching import ROOT, mpirun, ok, run, runner
from tests.layouts import each_of
from tests.results import losses

EXAMPLES = ROOT / "docs" / "train" / "examples"
RANKS = {"averaged": 4, "contrastive": 2, "distillation": 4, "dqn": 2, "finetune": 2, "pipeline": 2}
STEPS = 20
SETTINGS = ("--global-batch-size", "32", "--dtype", "float64", "--log-every", "10")

Alone = Callable[[str], list[float]]


def trained(ranks: int, name: str, folder: Path, *arguments: str, steps: int = STEPS) -> list[float]:
    """The losses of an example, which is started in another way on each number of ranks."""
    program = [str(EXAMPLES / f"{name}.py"), "--checkpoint-dir", str(folder), "--max-steps", str(steps), *SETTINGS]
    if ranks == 1:
        ok(run(sys.executable, *program, *arguments))
    elif ranks == 2:
        ok(runner(2, *program, *arguments))
    else:
        ok(mpirun(ranks, sys.executable, *program, *arguments))
    return losses(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """``alone(NAME)``: the losses of an example that one process has trained."""
    found: dict[str, list[float]] = {}

    def of(name: str) -> list[float]:
        if name not in found:
            found[name] = trained(1, name, tmp_path_factory.mktemp(name))
            assert len(found[name]) == STEPS
        return found[name]

    return of


def test_a_gan_on_two_ranks(alone: Alone, tmp_path: Path) -> None:
    assert trained(2, "gan", tmp_path) == pytest.approx(alone("gan"), rel=0, abs=1e-9)


@pytest.mark.parametrize(("name", "ranks"), RANKS.items())
def test_losses_on_several_ranks(name: str, ranks: int, alone: Alone, tmp_path: Path) -> None:
    assert trained(ranks, name, tmp_path) == pytest.approx(alone(name), rel=0, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [pytest.param("averaged", "fsdp", marks=pytest.mark.needs("fsdp")), ("dqn", "ddp"), ("gan", "ddp")],
)
def test_two_parts_are_the_whole(name: str, strategy: str, alone: Alone, tmp_path: Path) -> None:
    """The second of them on one rank. (The copy of a DQN's network is from step 8, in the checkpoint of step 10.)"""
    trained(2, name, tmp_path, "--strategy", strategy, steps=STEPS // 2)
    assert trained(1, name, tmp_path, "--resume") == pytest.approx(alone(name), rel=0, abs=1e-9)


@each_of((4, "--strategy fsdp --pp 2 --micro-batches 4"))
def test_a_pipeline(ranks: int, layout: str, alone: Alone, tmp_path: Path) -> None:
    assert trained(ranks, "pipeline", tmp_path, *layout.split()) == pytest.approx(alone("pipeline"), rel=0, abs=1e-9)


@pytest.mark.needs("fsdp")
def test_hooks_with_state_of_their_own(tmp_path: Path) -> None:
    """The average of the weights is resumed under another strategy, in shards, and the training ends in the same epoch."""
    program = [str(EXAMPLES / "hooks.py"), "--global-batch-size", "32", "--dtype", "float64", "--checkpoint-dir"]
    ok(run(sys.executable, *program, str(tmp_path / "one")))
    ok(runner(2, *program, str(tmp_path / "two"), "--epochs", "2"))
    done = ok(runner(2, *program, str(tmp_path / "two"), "--resume", "--strategy", "fsdp"))
    assert done.stdout.rstrip().endswith("3 epochs without a smaller loss")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=0, abs=1e-9)
    last = f"step-{len(losses(tmp_path / 'one'))}"
    one, two = (read_full(tmp_path / name / last) for name in ("one", "two"))
    assert {"own.average.0.weight", "own.average.2.bias"} <= one.keys() == two.keys()
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], rtol=0, atol=1e-9), name
