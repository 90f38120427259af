"""Data as people have it: their loaders, samplers and streams, on one rank and on several, and taken up in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok
from tests.results import losses, metrics, refused
from tests.turns import Turns

ONE_BATCH = ["--global-batch-size", "8"]


def train(turns: Turns, ranks: int, folder: Path, case: str, *more: str) -> list[float]:
    ok(turns(ranks, "own_data", "--case", case, "--checkpoint-dir", str(folder), *more))
    return losses(folder)


@pytest.mark.parametrize("case", ["plain", "weighted", "shuffled", "stream", "telling"])
def test_twenty_steps_have_the_same_losses_on_one_two_and_four_ranks(case: str, turns: Turns, tmp_path: Path) -> None:
    batch = [] if case in ("weighted", "shuffled") else ONE_BATCH  # a loader's own counts
    one, two, four = (
        train(turns, ranks, tmp_path / str(ranks), case, *batch, "--max-steps", "20") for ranks in (1, 2, 4)
    )
    assert len(one) == 20
    assert two == pytest.approx(one, rel=1e-9)
    assert four == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize(
    "case", ["weighted", "batches", "distributed", "stream", "telling", "streamed", "shards", "shards and tells"]
)
def test_an_epoch_is_taken_up_in_its_middle(case: str, turns: Turns, tmp_path: Path) -> None:
    """In the second epoch, which is another one."""
    whole = train(turns, 2, tmp_path / "whole", case)
    first = train(turns, 2, tmp_path / "parts", case, "--max-steps", str(len(whole) // 2 + 4))
    assert first == whole[: len(first)]
    done = ok(turns(2, "own_data", "--case", case, "--checkpoint-dir", str(tmp_path / "parts"), "--resume"))
    assert losses(tmp_path / "parts") == pytest.approx(whole, rel=1e-12)
    reads_again = case in ("stream", "shards")
    assert ("the data does not tell its place: 4 batches are read again" in done.stdout) == reads_again


def test_a_stream_is_taken_up_by_another_number_of_ranks(turns: Turns, tmp_path: Path) -> None:
    whole = train(turns, 1, tmp_path / "whole", "stream", *ONE_BATCH)
    train(turns, 2, tmp_path / "parts", "stream", *ONE_BATCH, "--max-steps", "7")
    assert train(turns, 4, tmp_path / "parts", "stream", *ONE_BATCH, "--resume") == pytest.approx(whole, rel=1e-9)


def test_places_of_other_ranks_are_refused(turns: Turns, tmp_path: Path) -> None:
    where = ["--case", "shards and tells", "--checkpoint-dir", str(tmp_path)]
    ok(turns(2, "own_data", *where, "--max-steps", "3"))
    refused(turns(4, "own_data", *where, "--resume"), "2 ranks had their own places in the data, and here are 4")


def test_an_epoch_ends_on_all_ranks_with_the_shortest_stream(turns: Turns, tmp_path: Path) -> None:
    """Rank 1 has 28 samples, which are 7 batches, and rank 0 has 48."""
    done = ok(turns(2, "own_data", "--case", "uneven", "--checkpoint-dir", str(tmp_path)))
    assert [line["epoch"] for line in metrics(tmp_path)] == [1] * 7 + [2] * 7
    assert "epoch 2/2  step 14" in done.stdout


@pytest.mark.parametrize(
    ("case", "more", "text"),
    [
        ("weighted", ["--batch-size", "16"], "the DataLoader makes batches of 4"),
        ("of other ranks", [], "the DistributedSampler is of rank 0 of 8"),
        ("lengths", [], "an epoch has 12 steps on rank 0, 11 steps on rank 1"),
        ("short", [], "the data ends in epoch 1 before each data-parallel rank has a batch"),
    ],
)
def test_what_cannot_be_shared_is_refused(case: str, more: list[str], text: str, turns: Turns, tmp_path: Path) -> None:
    refused(turns(2, "own_data", "--case", case, "--checkpoint-dir", str(tmp_path), *more), text)
