"""Data as people have it: their loaders, samplers and streams, on one rank and on several, and taken up in the middle of an epoch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launching import folder_of, ok, runner
from tests.results import losses, metrics, refused
from tests.turns import Turns

ONE_BATCH = ["--global-batch-size", "8"]


def train(turns: Turns, ranks: int, folder: Path, case: str, *more: str) -> list[float]:
    ok(turns(ranks, "own_data", "--case", case, "--checkpoint-dir", str(folder), *more))
    return losses(folder)


@pytest.mark.parametrize("case", ["plain", "weighted", "shuffled", "stream", "telling"])
def test_twenty_steps_have_the_same_losses_on_one_two_and_four_ranks(case: str, turns: Turns, tmp_path: Path) -> None:
    batch = [] if case in ("weighted", "shuffled") else ONE_BATCH  # a loader's own counts
    options = [*batch, "--max-steps", "20"]
    one, two, four = (train(turns, ranks, tmp_path / str(ranks), case, *options) for ranks in (1, 2, 4))
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
    reads_again = case in ("stream", "streamed", "shards")
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
        ("own random numbers", [], "OwnRandomNumbers draws other keys on each rank"),
    ],
)
def test_what_cannot_be_shared_is_refused(case: str, more: list[str], text: str, turns: Turns, tmp_path: Path) -> None:
    refused(turns(2, "own_data", "--case", case, "--checkpoint-dir", str(tmp_path), *more), text)


def test_a_loader_of_another_kind_is_used_as_it_is(turns: Turns, tmp_path: Path) -> None:
    """Its batches have other sizes on each rank; the 17th is alone in the last round of two ranks."""
    one = train(turns, 1, tmp_path / "1", "loader")
    two = train(turns, 2, tmp_path / "2", "loader")
    assert (len(one), len(two)) == (2 * 17, 2 * 9)
    first = train(turns, 2, tmp_path / "parts", "loader", "--max-steps", "13")
    assert first == two[:13]
    assert train(turns, 2, tmp_path / "parts", "loader", "--resume") == pytest.approx(two, rel=1e-12)
    again = train(turns, 1, tmp_path / "again", "loader", "--max-steps", "5")
    assert again == one[:5]
    done = turns(2, "own_data", "--case", "other loaders", "--checkpoint-dir", str(tmp_path / "other"))
    refused(done, "Loader gives other batches on each rank")


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_is_of_what_the_loader_gives(ranks: int, turns: Turns, tmp_path: Path) -> None:
    found = []
    for test in ("half itself", "half", "half as batches"):
        train(turns, ranks, tmp_path / test, "plain", "--epochs=1", f"--test={test}")
        found.append(metrics(tmp_path / test)[-1]["val_loss"])
    assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-9)


def test_a_file_that_is_opened_at_the_first_sample_is_each_process_own(turns: Turns, tmp_path: Path) -> None:
    """Also after a look at the data and an evaluation, before each epoch's processes are forked."""
    train(turns, 1, tmp_path, "opening", "--test=opening", "--epochs=3")


def seen(folder: Path) -> dict[int, list[int]]:
    """The samples of each step on both ranks; of a step that was computed twice those of the second time."""
    found: dict[int, list[int]] = {}
    for rank in range(2):
        lines = [json.loads(line) for line in (folder / f"seen-{rank}").read_text().splitlines()]
        for step, numbers in dict(lines).items():
            found[step] = found.get(step, []) + numbers
    return found


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("case", ["shuffled", "distributed", "stream"])
def test_a_stateful_loader_gives_each_sample_once_though_a_rank_is_killed(
    case: str, workers: str, turns: Turns, tmp_path: Path
) -> None:
    """In the middle of the second epoch, a step after a checkpoint."""
    options = [f"--case={case}", f"--loader-workers={workers}", "--save-every=2steps"]
    ok(turns(2, "stateful_loaders", *options, f"--checkpoint-dir={tmp_path}/whole"))
    parts = f"--checkpoint-dir={tmp_path}/parts"
    killed = runner(2, "stateful_loaders", *options, parts, "--killed-at=9", cwd=folder_of("stateful_loaders"))
    assert killed.returncode == 137
    assert "rank 1 of 2" in killed.stderr
    done = ok(turns(2, "stateful_loaders", *options, parts, "--resume"))
    assert "step-8, step 8, 1 of 2 epochs done" in done.stdout
    assert "read again" not in done.stdout
    found = seen(tmp_path / "parts")
    assert found == seen(tmp_path / "whole")
    for epoch in (range(1, 7), range(7, 13)):
        assert sorted(number for step in epoch for number in found[step]) == list(range(46))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_a_stateful_loader_shuffles_as_torchs_does(turns: Turns, tmp_path: Path) -> None:
    for case in ("shuffled", "shuffled by torch"):
        ok(turns(2, "stateful_loaders", f"--case={case}", f"--checkpoint-dir={tmp_path}/{case}"))
    assert seen(tmp_path / "shuffled") == seen(tmp_path / "shuffled by torch")
