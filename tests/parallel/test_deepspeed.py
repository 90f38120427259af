"""Scripts written for DeepSpeed, unmodified, without its launcher and without a hostfile."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launching import SCRIPTS, ok, runner

Trained = Callable[..., list[float]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trains on a number of ranks, with the script's arguments; returns the losses that it prints.

    On CPUs DeepSpeed compiles an extension at its first start, in a folder in which a build that was killed leaves a lock.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as in an activated environment: it calls ninja
    folder = tmp_path_factory.mktemp("extensions")
    return functools.partial(_trained, PATH=path, TORCH_EXTENSIONS_DIR=str(folder))


def _trained(ranks: int, *arguments: str, **environment: str) -> list[float]:
    done = ok(runner(ranks, str(SCRIPTS / "train_deepspeed.py"), *arguments, timeout=280, **environment))
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("losses "))
    return [float(loss) for loss in line.split()[1:]]


@pytest.fixture(scope="module")
def expected(trained: Trained) -> list[float]:
    """The losses without ZeRO: plain data parallelism."""
    losses = trained(2)
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
    return losses


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_every_stage_of_zero_has_the_losses_of_data_parallelism(
    stage: str, expected: list[float], trained: Trained
) -> None:
    assert trained(2, "--stage", stage) == pytest.approx(expected, rel=1e-5)


def test_two_way_data_parallel_two_stages_eight_micro_batches(trained: Trained) -> None:
    """The slides' pipeline, by DeepSpeed's own PipelineModule."""
    losses = trained(4, "-p", "2")
    assert len(losses) == 6
    assert losses[-1] < 0.9 * losses[0]
