"""A feature does what it should from its floor on, and not below: a floor that could fall is noticed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from runner.versions.features import FEATURES
from runner.versions.torch_build import torch_build
from tests.launching import PROGRAMS
from tests.programs.layouts.deviations import largest
from tests.turns import Turns


@pytest.fixture(scope="module")
def without_floors() -> Iterator[Turns]:
    with contextlib.closing(Turns(PYTHONPATH=str(PROGRAMS / "without_floors"))) as turns:
        yield turns


@pytest.mark.needs("replicas")
@pytest.mark.parametrize(
    ("feature", "ranks", "options"),
    [
        ("pp", 2, "--pp 2 --pp-schedule interleaved-zero-bubble --micro-batches 4"),
        ("v-schedules", 2, "--pp 2 --pp-schedule dualpipev --micro-batches 4"),
        ("idle stage", 2, "--pp 2 --only-head --clip-norm 0.01"),
        ("uneven", 4, "--strategy fsdp --tp 2 --loss-parallel"),
        ("frozen", 2, "--tp 2 --frozen --clip-norm 0.1"),
        ("sequence-parallel", 2, "--tp 2 --sequence-parallel --clip-norm 0.1"),
        ("order", 4, "--strategy fsdp --tp 2 --order 0,3,2,1"),
    ],
)
def test_training_is_as_by_one_process_from_the_floor_on_only(
    feature: str, ranks: int, options: str, without_floors: Turns
) -> None:
    done = without_floors(ranks, "parity", "--dtype", "float64", "--batch-size", "8", *options.split())
    is_right = False
    if done.returncode == 0:
        found = json.loads(done.stdout.partition("parity ")[2])
        is_right = largest([found["loss"], found["weights"], found["outputs"]]) < 1e-9
    assert is_right == (not FEATURES[feature].shortfall(torch_build().version)), done.stdout + done.stderr
