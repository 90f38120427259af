"""Saving and continuing: a resumed run is the same run, and nothing is lost unasked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.training.checkpoint import checkpoint_folder, shards
from tests.launching import PROGRAMS, before_path, ok, runner, warnings_of
from tests.layouts import FSDP
from tests.results import losses, metrics, refused
from tests.turns import Turns, turns_fixture

TRAINING = PROGRAMS / "training"
SHORT = ["--batch-size", "16"]  # two steps an epoch on two ranks


# Jobs that know the strategy of another package.
OTHER_PACKAGE = before_path(PROGRAMS / "extensions" / "other_package")
turns = turns_fixture("module", PYTHONPATH=OTHER_PACKAGE)

Trained = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def trained(turns: Turns) -> Trained:
    """``trained(RANKS, FOLDER, *ARGUMENTS)``: a training, as the next turn of a job."""

    def train(ranks: int, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return turns(ranks, "resumable", "--checkpoint-dir", str(folder), *arguments)

    return train


def trained_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A training on two ranks, in a job of its own."""
    return runner(2, "resumable", "--checkpoint-dir", str(folder), *arguments, cwd=TRAINING)


def content_of(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


def steps_of(folder: Path) -> list[int]:
    """Those of the checkpoints that are there."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob("step-*/checkpoint.json"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The metrics of a training in one run."""
    folder = tmp_path_factory.mktemp("whole")
    ok(trained_alone(folder, *SHORT))
    return metrics(folder)


@pytest.mark.parametrize(("stop", "workers"), [("--epochs=2", "0"), ("--max-steps=3", "0"), ("--max-steps=3", "2")])
def test_with_dropout_and_augmentation_two_parts_are_the_whole(
    stop: str, workers: str, whole: list[dict[str, Any]], trained: Trained, tmp_path: Path
) -> None:
    """And so they are if other processes read the data."""
    ok(trained(2, tmp_path / "parts", *SHORT, stop, "--workers", workers))
    done = ok(trained(2, tmp_path / "parts", *SHORT, "--resume", "--workers", workers))
    parts = metrics(tmp_path / "parts")
    for field in ("loss", "step", "epoch"):
        assert [line[field] for line in parts] == [line[field] for line in whole]
    assert [line["epoch"] for line in whole] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert parts[-1]["val_loss"] == whole[-1]["val_loss"]
    step, epochs = (4, 2) if "epochs" in stop else (3, 1)
    assert done.stdout.splitlines()[0] == (
        f"continuing from {tmp_path}/parts/step-{step}, step {step}, {epochs} of 4 epochs done"
    )


def test_local_sgd_goes_on_from_the_average_of_all_ranks(trained: Trained, tmp_path: Path) -> None:
    local = [*SHORT, "--strategy", "local-sgd", "--sync-every", "3", "--optimizer", "Adam"]
    ok(trained(2, tmp_path / "whole", *local))
    ok(trained(2, tmp_path / "parts", *local, "--epochs", "2"))
    ok(trained(2, tmp_path / "parts", *local, "--resume"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_an_outer_optimizer_goes_on_with_its_momentum(trained: Trained, tmp_path: Path) -> None:
    local = [*SHORT, "--strategy", "local-sgd", "--sync-every", "2", "--outer-optimizer", "nesterov"]
    local += ["--save-every", "4steps"]
    ok(trained(2, tmp_path / "whole", *local))
    ok(trained(2, tmp_path / "parts", *local, "--max-steps", "4"))
    tensors = shards.read_full(tmp_path / "parts" / "step-4")
    momenta = [tensor for name, tensor in tensors.items() if name.startswith("outer.")]
    assert momenta
    assert all(momentum.abs().max() > 0 for momentum in momenta)
    ok(trained(2, tmp_path / "parts", *local, "--resume"))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_what_has_changed_is_said_and_obeyed_or_refused(trained: Trained, tmp_path: Path) -> None:
    ok(trained(2, tmp_path, *SHORT, "--max-steps", "3"))
    before = content_of(tmp_path / "step-3")
    done = trained(1, tmp_path, *SHORT, "--resume", "--seed", "5")
    refused(done, "(then 64 samples, seed 0; now 64 samples, seed 5)")
    assert content_of(tmp_path / "step-3") == before
    done = ok(trained(1, tmp_path, *SHORT, "--resume", "--lr", "0.1", "--epochs", "2"))
    told = ", step 3, 1 of 2 epochs done; ranks 2 → 1, global batch 32 → 16, lr 0.01 → 0.1"
    assert done.stdout.splitlines()[0].endswith(told)
    assert [line["lr"] for line in metrics(tmp_path)] == [0.01] * 3 + [0.1] * 2
    before = content_of(tmp_path / "step-5")
    done = ok(trained(1, tmp_path, *SHORT, "--resume", "--epochs", "2"))
    assert done.stdout.startswith(f"nothing left to do: {tmp_path}/step-5 is at epoch 2 of 2 (test loss ")
    assert done.stdout.endswith("to continue, give a larger --epochs\n")
    assert content_of(tmp_path / "step-5") == before
    assert len(metrics(tmp_path)) == 5


def test_ranks_take_equally_many_steps_of_what_is_left_of_an_epoch(trained: Trained, tmp_path: Path) -> None:
    ok(trained(1, tmp_path, "--batch-size", "1", "--lr", "1e-4", "--max-steps", "1"))
    options = ["--batch-size", "1", "--lr", "1e-4", "--epochs", "1"]
    ok(trained(2, tmp_path, *options, "--resume", "--log-every", "1000"))
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 1 + 1 + 63 // 2))
    assert {line["epoch"] for line in lines} == {1}
    assert lines[-1]["val_loss"] is not None


def test_an_epoch_of_which_no_whole_batch_is_left_is_evaluated(trained: Trained, tmp_path: Path) -> None:
    options = ["--net", "linear", "--epochs", "2", "--lr", "1e-4"]
    ok(trained(1, tmp_path, *options, "--batch-size", "8", "--max-steps", "14"))
    done = ok(trained(1, tmp_path, *options, "--batch-size", "32", "--resume"))
    assert "done: 14 steps, test loss " in done.stdout


def test_what_is_evaluated_is_what_is_saved(trained: Trained, tmp_path: Path) -> None:
    """Running statistics differ between ranks in training."""
    ok(trained(2, tmp_path, *SHORT, "--net", "norm", "--epochs", "1"))
    reported = metrics(tmp_path)[-1]["val_loss"]
    done = ok(trained(1, tmp_path, *SHORT, "--net", "norm", "--epochs", "1", "--resume"))
    assert f"(test loss {reported:.4g})" in done.stdout


def test_a_run_does_not_write_its_own_checkpoint_again_before_its_next_step(trained: Trained, tmp_path: Path) -> None:
    ok(trained(2, tmp_path, *SHORT, "--max-steps", "1"))
    checkpoint = tmp_path / "step-1"
    before = content_of(checkpoint), checkpoint.stat().st_ino
    # 32 samples are left of the first epoch, which are no batch of 64, so that it ends at once
    ok(trained(1, tmp_path, "--batch-size", "64", "--epochs", "2", "--resume"))
    assert (content_of(checkpoint), checkpoint.stat().st_ino) == before
    assert steps_of(tmp_path) == [1, 2]
    other = ["--checkpoint-dir", str(tmp_path / "other"), "--resume", str(checkpoint)]
    ok(trained(1, tmp_path, *other, "--batch-size", "64", "--epochs", "1"))
    assert steps_of(tmp_path / "other") == [1]


def test_a_program_may_change_its_working_folder(trained: Trained, tmp_path: Path) -> None:
    folder = Path(os.path.relpath(tmp_path / "runs", TRAINING))
    for _ in range(2):
        ok(trained(1, folder, *SHORT, "--epochs", "2", "--then-in", str(tmp_path)))
        assert steps_of(tmp_path / "runs") == [4, 8]
    assert steps_of(tmp_path / "runs" / "earlier.1") == [4, 8]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_second_run_keeps_the_first(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first = ok(trained(1, folder, *SHORT, "--epochs", "1"))
    assert "earlier" not in first.stdout
    checkpoint, lines = content_of(folder / "step-4"), (folder / "metrics.jsonl").read_bytes()
    second = ok(trained(2, folder, *SHORT, "--epochs", "2"))
    assert second.stdout.splitlines()[0] == (
        f"an earlier run is kept as {folder}/earlier.1 and {folder}/metrics.1.jsonl "
        f"(to continue from it: --resume {folder}/earlier.1)"
    )
    assert content_of(folder / "earlier.1" / "step-4") == checkpoint
    assert (folder / "metrics.1.jsonl").read_bytes() == lines
    assert len(metrics(folder)) == 4
    # as it says; the second run is kept in its turn, and the metrics are those of the first
    ok(trained(1, folder, *SHORT, "--epochs", "2", "--resume", str(folder / "earlier.1")))
    assert sorted(path.name for path in folder.iterdir()) == [
        *("earlier.1", "earlier.2", "metrics.1.jsonl", "metrics.2.jsonl", "metrics.jsonl"),
        *("run.json", "settings.1.toml", "settings.2.toml", "settings.toml", "step-8"),
    ]
    assert (folder / "metrics.jsonl").read_bytes().startswith(lines)
    assert [line["epoch"] for line in metrics(folder)] == [1] * 4 + [2] * 4
    # one that continues from an earlier step leaves what came of it before
    ok(trained(1, folder, *SHORT, "--epochs", "3", "--resume"))
    done = ok(trained(1, folder, *SHORT, "--max-steps", "10", "--resume", str(folder / "step-8")))
    assert f"an earlier run is kept as {folder}/earlier.3 and {folder}/metrics.3.jsonl" in done.stdout
    assert sorted(path.name for path in folder.glob("*/step-*")) == ["step-12", "step-2", "step-4", "step-4"]
    assert len((folder / "metrics.3.jsonl").read_text().splitlines()) == 12
    assert len(metrics(folder)) == 10


def test_a_run_that_ends_before_it_saves_leaves_the_earlier_checkpoint_in_its_place(
    trained: Trained, tmp_path: Path
) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "1"))
    before = content_of(tmp_path / "step-4")
    refused(trained(1, tmp_path, *SHORT, "--nan-at", "0", "--check-finite"), "--check-finite", code=1)
    assert content_of(tmp_path / "step-4") == before
    ok(trained(1, tmp_path, *SHORT, "--epochs", "2", "--resume"))
    assert [line["step"] for line in metrics(tmp_path)] == [5, 6, 7, 8]  # none of the broken run's


def test_checkpoints_by_steps_and_how_many_are_kept(trained: Trained, tmp_path: Path) -> None:
    options = [*SHORT, "--save-every", "end", "--keep", "3", "--epochs", "2"]  # eight steps on one rank
    ok(trained(1, tmp_path / "steps", *options, "--save-every", "3steps"))
    assert steps_of(tmp_path / "steps") == [3, 6, 8]
    ok(trained(1, tmp_path / "steps", *options, "--save-every", "1steps", "--epochs", "3", "--resume"))
    assert steps_of(tmp_path / "steps") == [10, 11, 12]
    seldom = ["--log-every", "1000"]  # nothing else makes the ranks meet
    ok(trained(2, tmp_path / "seconds", *options, *seldom, "--save-every", "0.001s"))
    *before, last = steps_of(tmp_path / "seconds")  # the ranks look at the clock now and then, not at each step
    assert before
    assert last == 4


@pytest.mark.parametrize("strategy", ["ddp", FSDP, "zero1", "local-sgd"])
def test_a_checkpoint_that_is_written_during_the_next_steps_is_that_of_its_step(
    strategy: str, trained: Trained, tmp_path: Path
) -> None:
    options = [*SHORT, "--strategy", strategy, "--epochs", "2", "--save-every", "2steps", "--keep", "9"]
    ok(trained(2, tmp_path / "at-once", *options))
    ok(trained(2, tmp_path / "meanwhile", *options, "--save-async", "--slow-writing", "0.3"))
    assert steps_of(tmp_path / "meanwhile") == [2, 4]
    for step in ("step-2", "step-4"):
        folders = [tmp_path / name / step for name in ("at-once", "meanwhile")]
        (there, _), (here, _) = map(checkpoint_folder.read_manifest, folders)
        assert replace(there, path=here.path) == here
        expected, found = map(shards.read_full, folders)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_what_cannot_be_written_in_the_background_ends_the_job(trained: Trained, tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "1"))
    options = [*SHORT, "--resume", "--save-async", "--largest-file", "1000", "--max-steps", "6"]
    refused(trained(2, tmp_path, *options), f"{tmp_path}/step-6: File too large", code=1)
    assert steps_of(tmp_path) == [4]


@pytest.mark.parametrize("how", [[], ["--save-async"]], ids=["at once", "in the background"])
@pytest.mark.needs("fsdp")
def test_one_rank_that_cannot_write_its_shard_ends_the_job(how: list[str], trained: Trained, tmp_path: Path) -> None:
    options = [*SHORT, "--strategy", "fsdp", *how]
    ok(trained(2, tmp_path, *options, "--epochs", "1"))
    failing = ["--largest-file", "1000", "--failing-rank", "1", "--max-steps", "6"]
    refused(trained(2, tmp_path, *options, "--resume", *failing), f"{tmp_path}/step-4: File too large", code=1)
    assert steps_of(tmp_path) == [2]
    assert not list(tmp_path.glob(".step-*"))


def test_what_is_not_complete_is_passed_over(trained: Trained, tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "2", "--keep", "1"))
    for name in ("step-9", ".step-9.new"):  # by a job that was killed
        (tmp_path / name).mkdir()
        (tmp_path / name / "model-00001-of-00001.safetensors").write_bytes(b"half")
    done = trained(1, tmp_path, *SHORT, "--resume", str(tmp_path / "step-9"))
    refused(done, "--resume: there is no complete checkpoint ", "step-9; there is ", "step-8")
    manifest = tmp_path / "step-8" / "checkpoint.json"
    refused(trained(1, tmp_path, *SHORT, "--resume", str(manifest)), f"no complete checkpoint {manifest}")
    done = ok(trained(1, tmp_path, *SHORT, "--epochs", "3", "--keep", "1", "--resume"))
    assert f"{tmp_path}/step-8, step 8" in done.stdout
    assert steps_of(tmp_path) == [12]
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_one_line_and_the_old_checkpoint_is_kept(trained: Trained, tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "1"))
    before = content_of(tmp_path / "step-4")
    full = trained(2, tmp_path, *SHORT, "--resume", "--net", "dropout", "--largest-file", "1000")
    refused(full, f"{tmp_path}/step-6: File too large", "--resume", code=1)
    assert content_of(tmp_path / "step-4") == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    # another run's checkpoint stays where it is until there is one of this run
    full = trained(1, tmp_path, *SHORT, "--epochs", "3", "--largest-file", "1000")
    refused(full, f"{tmp_path}/step-4: File too large", "; nothing was saved before", code=1)
    assert content_of(tmp_path / "step-4") == before
    full = trained_alone(tmp_path, *SHORT, "--metrics", "/dev/full")
    refused(full, "rank 0 of 2 on host", "/dev/full: No space left on device", code=1)


def test_a_damaged_checkpoint_is_refused_and_kept(trained: Trained, tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "1"))
    path = tmp_path / "step-4" / "model-00001-of-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 16
    path.write_bytes(content)
    refused(trained(2, tmp_path, *SHORT, "--resume"), "step-4 is damaged", f"the checksum of {path.name} is wrong")
    assert path.read_bytes() == content


@pytest.mark.parametrize("strategy", ["ddp", FSDP])
def test_the_newest_that_is_intact_is_taken(strategy: str, trained: Trained, tmp_path: Path) -> None:
    options = [*SHORT, "--strategy", strategy, "--keep", "9"]
    ok(trained(2, tmp_path, *options, "--epochs", "6"))
    steps = ("step-10", "step-8", "step-6", "step-4")
    changed, lost, cut, flipped = (sorted((tmp_path / step).glob("*.safetensors"))[-1] for step in steps)
    (tmp_path / "step-12" / "checkpoint.json").unlink()
    content = changed.read_bytes()
    begin = content.index(b'"shape":[') + len(b'"shape":[')  # a torch that reads it takes the model for another one
    changed.write_bytes(content[:begin] + b"9" + content[begin + 1 :])
    lost.unlink()
    size = cut.stat().st_size
    cut.write_bytes(cut.read_bytes()[:-8])
    content = bytearray(flipped.read_bytes())
    content[-3] ^= 16
    flipped.write_bytes(content)
    done = ok(trained(2, tmp_path, *options, "--resume", "auto"))
    *skipped, last = done.stdout.splitlines()[:6]
    reasons = {
        tmp_path / "step-12": "(checkpoint.json: [Errno 2] No such file",
        changed.parent: f"{changed.name} is wrong)",
        lost.parent: f"({lost.name} is missing)",
        cut.parent: f"({cut.name} has {size - 8} bytes, not {size})",
        flipped.parent: f"{flipped.name} is wrong)",
    }
    for line, (path, why) in zip(skipped, reasons.items(), strict=True):
        assert line.startswith(f"skipped: {path} ")
        assert why in line
    assert f" {tmp_path}/step-2, step 2" in last


@pytest.mark.needs("fsdp")
def test_a_strategy_of_another_package_shards_and_others_go_on_from_it(turns: Turns, tmp_path: Path) -> None:
    """Thirty lines, found by their entry point: FSDP on 2 and 4 ranks, DDP on one, and back."""

    def trained_until(step: int, ranks: int, strategy: str, folder: str) -> None:
        options = ["--dtype", "float64", "--global-batch-size", "16", "--checkpoint-dir", str(tmp_path / folder)]
        options += ["--strategy", strategy, "--max-steps", str(step), "--resume", "--clip-norm", "0.3"]
        ok(turns(ranks, "fingerprint", *options))

    trained_until(40, 2, "ddp", "whole")
    for step, ranks, strategy in ((10, 2, "sharded"), (25, 4, "sharded"), (35, 1, "ddp"), (40, 2, "sharded")):
        trained_until(step, ranks, strategy, "parts")
        shards = [path.name[:11] for path in sorted((tmp_path / "parts" / f"step-{step}").glob("shard-*"))]
        assert shards == [f"shard-{rank:05d}" for rank in range(1, ranks + 1) if strategy == "sharded"]
    whole, parts = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    assert [line["step"] for line in parts] == list(range(1, 41))
    assert [line["loss"] for line in parts] == pytest.approx([line["loss"] for line in whole], rel=1e-9)
    assert parts[-1]["val_loss"] == pytest.approx(whole[-1]["val_loss"], rel=1e-9)


@pytest.mark.parametrize("strategy", [["ddp", "--save-async"], pytest.param(["fsdp"], marks=pytest.mark.needs("fsdp"))])
def test_a_training_that_diverges_ends_and_keeps_its_last_good_checkpoint(
    strategy: list[str], trained: Trained, tmp_path: Path
) -> None:
    """The loss is infinite first, of weights that are not yet; with --keep 1 each of these would replace the last good one."""
    options = ["--net", "linear", "--lr", "9", "--epochs", "60", "--save-every", "1steps", "--keep", "1"]
    done = trained(2, tmp_path, *SHORT, *options, "--strategy", *strategy)
    lines = metrics(tmp_path)
    at_ends = {line["step"]: line["val_loss"] for line in lines[1::2]}  # of epochs
    since = next(line["step"] for line in lines if None in (line["loss"], at_ends.get(line["step"], line["loss"])))
    assert lines[-1]["step"] > since + 1
    refused(
        done,
        f"loss is inf since step {since}, in epoch ",
        f", and weights are not finite; the last good checkpoint is {tmp_path}/step-{since - 1}; continue with --resume ",
        code=1,
    )
    assert done.stdout.count("the loss is inf at step ") == 1
    assert steps_of(tmp_path) == [since - 1, lines[-1]["step"] - 1]
    for step in steps_of(tmp_path):
        assert all(tensor.isfinite().all() for tensor in shards.read_full(tmp_path / f"step-{step}").values())


def test_a_training_whose_last_loss_is_no_number_does_not_end_well(trained: Trained, tmp_path: Path) -> None:
    in_the_test_data = ["--nan-at", "70", "--epochs", "3", "--keep", "1"]
    refused(trained(2, tmp_path, *SHORT, *in_the_test_data), "the test loss is nan since step 2, in epoch 1", code=1)
    assert steps_of(tmp_path) == [6]
    again = trained(2, tmp_path, *SHORT, *in_the_test_data, "--resume", "auto")
    refused(again, f"nothing is left to do, and the loss of {tmp_path}/step-6 was not finite", code=1)
    done = trained(2, tmp_path, *SHORT, "--nan-at", "3")
    refused(done, "the loss is nan since step ", "nothing good was saved", code=1)


def test_a_loss_that_is_no_number_ends_the_job_at_once_where_asked(tmp_path: Path) -> None:
    done = trained_alone(tmp_path, *SHORT, "--nan-at", "3", "--check-finite")
    refused(done, "--check-finite: the loss is nan on rank ", " at step ", code=1)
    assert done.stderr.count("is nan on rank") == 1


@pytest.mark.parametrize("strategy", ["ddp", FSDP])
def test_so_does_a_gradient(strategy: str, trained: Trained, tmp_path: Path) -> None:
    done = trained(2, tmp_path, *SHORT, "--nan-gradient", "--check-finite", "--strategy", strategy)
    refused(done, "--check-finite: the gradient of ", " is not finite at step 1, in epoch 1", code=1)


def test_a_job_that_has_nothing_left_to_do_ends_well(trained: Trained, tmp_path: Path) -> None:
    """In a job of its own: what the runner says of the end of a job is not seen in one that takes turns."""
    ok(trained(1, tmp_path, *SHORT, "--net", "linear", "--epochs", "1"))
    done = ok(trained_alone(tmp_path, "--resume", "auto", *SHORT, "--net", "linear", "--epochs", "1"))
    assert f" {tmp_path}/step-4 " in done.stdout
    assert not warnings_of(done)


@pytest.mark.parametrize(
    ("asked_for", "said"), [(["--only-evaluates"], "evaluated: Evaluation("), (["--no-epoch"], "done: 0 steps")]
)
def test_a_workload_without_a_step_ends_well(asked_for: list[str], said: str, trained: Trained, tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--net", "linear", "--epochs", "1"))
    place = ["--checkpoint-dir", str(tmp_path if "--only-evaluates" in asked_for else tmp_path / "new"), "--resume"]
    done = ok(runner(1, "resumable", "--net", "linear", *place, *asked_for, cwd=TRAINING))
    assert said in done.stdout
    # Torch before 2.10 may say this of a tensor at its end.
    assert [line for line in done.stderr.splitlines() if "Deallocating Tensor that still has live" not in line] == []
