"""Batches of any form, and losses that are sums with a weight: the numbers are those of one process, by every strategy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.launching import ROOT, RUNNER, ok, run, runner
from tests.layouts import case, each_of
from tests.results import losses, metrics, refused
from tests.turns import Turns

EXAMPLE = str(ROOT / "docs" / "train" / "examples" / "transformer.py")
ONE_BATCH = ("--dtype=float64", "--global-batch-size=16", "--lr=0.01", "--log-every=1", "--save-every=end")
STEPS = "--max-steps=20"
KEPT = ("--keep-last", "--samples=85", "--epochs=2")  # five batches of 16, and one of 5


def train(turns: Turns, ranks: int, folder: Path, *more: str) -> dict[str, list[float]]:
    ok(turns(ranks, "tree_batches", *ONE_BATCH, *more, f"--checkpoint-dir={folder}"))
    return numbers_of(folder)


def numbers_of(folder: Path) -> dict[str, list[float]]:
    """The losses, and what the evaluations have found."""
    evaluated = [line for line in metrics(folder) if line["val_loss"] is not None]
    names = [name for name in evaluated[0] if name in ("val_loss", "val_token_accuracy")]
    return {"loss": losses(folder)} | {name: [line[name] for line in evaluated] for name in names}


def same(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        assert found[name] == pytest.approx(numbers, rel=1e-9), name


@pytest.fixture(scope="module")
def one(turns: Turns, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one rank computes, by the arguments."""
    found: dict[tuple[str, ...], dict[str, list[float]]] = {}

    def numbers(*more: str) -> dict[str, list[float]]:
        if more not in found:
            found[more] = train(turns, 1, tmp_path_factory.mktemp("one"), *more)
        return found[more]

    return numbers


LAYOUTS = [
    (4, "--micro-batches 2"),
    (2, "--clip-norm 0.05"),
    (4, "--strategy fsdp --micro-batches 2 --clip-norm 0.05"),
    (4, "--strategy fsdp --replicate 2"),
    (2, "--strategy zero1 --clip-norm 0.05"),
    (4, "--strategy zero1 --micro-batches 2"),
]


def clip_of(layout: str) -> list[str]:
    words = layout.split()
    return words[words.index("--clip-norm") :][:2] if "--clip-norm" in words else []


@each_of(*LAYOUTS)
def test_a_mean_over_tokens_is_that_of_all_ranks(
    ranks: int, layout: str, one: Any, turns: Turns, tmp_path: Path
) -> None:
    """Ranks and micro-batches have different numbers of tokens."""
    expected = one(STEPS, *clip_of(layout))
    assert len(expected["loss"]) == 20
    assert expected["val_token_accuracy"]
    same(train(turns, ranks, tmp_path, STEPS, *layout.split()), expected)


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        case(*layout)
        for layout in [
            (2, "--tp 2"),
            (4, "--pp 2 --micro-batches 4 --clip-norm 0.05"),
            (4, "--tp 2 --strategy fsdp"),
            (4, "--tp 2 --pp 2 --micro-batches 2"),
        ]
    ],
)
def test_so_is_that_of_outputs_and_targets(ranks: int, layout: str, one: Any, turns: Turns, tmp_path: Path) -> None:
    expected = one(STEPS, "--case=pairs", *clip_of(layout))
    same(train(turns, ranks, tmp_path, STEPS, "--case=pairs", *layout.split()), expected)


@pytest.mark.parametrize("what", ["tokens", "pairs"])
@each_of((4, "--strategy fsdp"), (2, "--strategy zero1 --clip-norm 0.05"))
def test_a_short_last_batch_counts_by_its_samples(
    what: str, ranks: int, layout: str, one: Any, turns: Turns, tmp_path: Path
) -> None:
    expected = one(*KEPT, f"--case={what}", *clip_of(layout))
    assert len(expected["loss"]) == 12
    same(train(turns, ranks, tmp_path, *KEPT, f"--case={what}", *layout.split()), expected)


@pytest.mark.parametrize("what", ["tokens", "means"])
@each_of((4, "--micro-batches 2"), (4, "--strategy fsdp"), (4, "--strategy zero1"))
def test_a_rank_may_have_no_sample_of_it(
    what: str, ranks: int, layout: str, one: Any, turns: Turns, tmp_path: Path
) -> None:
    """The last batch has two samples."""
    few = ("--keep-last", "--samples=18", "--epochs=3", f"--case={what}")
    same(train(turns, ranks, tmp_path, *few, *layout.split()), one(*few))


@each_of(
    (2, "--precision bf16"),
    (2, "--precision fp16 --micro-batches 2"),
    (2, "--precision fp16 --strategy fsdp --clip-norm 1"),
    (2, "--strategy local-sgd --sync-every 2"),
)
def test_other_ways_to_train_learn_too(ranks: int, layout: str, turns: Turns, tmp_path: Path) -> None:
    options = [*ONE_BATCH[1:], *layout.split(), "--keep-last", "--samples=85", "--epochs=6"]
    ok(turns(ranks, "tree_batches", *options, f"--checkpoint-dir={tmp_path}"))
    found = numbers_of(tmp_path)
    assert all(map(math.isfinite, found["loss"]))
    assert found["val_loss"][-1] < 0.8 * found["val_loss"][0]


@pytest.mark.parametrize(
    ("what", "more", "text"),
    [
        ("no tensors", "", "has no tensors"),
        ("packed", "--micro-batches 2", "--micro-batches 2: the batch {"),
        ("vector", "", "the loss of a batch is float32 [3], and has to be one real number"),
        ("vector weight", "", "the weight of a batch's loss is float32 [3], and has to be one number"),
        ("text metric", "", "the metric words is of type str, and has to be one number"),
        ("counter", "", "the metric count (Counter)"),
        ("no loss", "", "the task has no loss"),
        ("two losses", "", "the task has two losses"),
        ("stages", "--pp 2", "--pp 2: stages compute the outputs, and the task's loss calls the model itself"),
    ],
)
def test_what_does_not_fit_is_refused(what: str, more: str, text: str, turns: Turns, tmp_path: Path) -> None:
    done = turns(2, "tree_batches", f"--case={what}", *more.split(), f"--checkpoint-dir={tmp_path}")
    refused(done, text)


def test_the_example_is_a_script(one: Any, tmp_path: Path) -> None:
    ok(runner(2, EXAMPLE, *ONE_BATCH, STEPS, cwd=tmp_path))
    same(numbers_of(tmp_path / "runs" / "transformer"), one(STEPS))
    ok(run(*RUNNER, EXAMPLE, *ONE_BATCH, STEPS, "--checkpoint-dir=alone", cwd=tmp_path))
    same(numbers_of(tmp_path / "alone"), one(STEPS))
