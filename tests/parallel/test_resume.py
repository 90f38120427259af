"""Saving and going on: a resumed run is the same run, and nothing is lost unasked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.launching import RUNNER, SCRIPTS, ok, own_lines, run, runner

SHORT = ["--batch-size", "16"]  # two steps an epoch on two ranks


def metrics(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def trained(ranks: int, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    options = ["--checkpoint-dir", str(folder), *arguments]
    if ranks == 1:
        return run(*RUNNER, "resumable", *options, cwd=SCRIPTS, **environment)
    return runner(ranks, "resumable", *options, cwd=SCRIPTS, **environment)


def refused(done: subprocess.CompletedProcess[str], *texts: str, code: int = 2) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    (line,) = own_lines(done)
    for text in texts:
        assert text in line
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The metrics of a training in one run."""
    folder = tmp_path_factory.mktemp("whole")
    ok(trained(2, folder, *SHORT))
    return metrics(folder / "metrics.jsonl")


@pytest.mark.parametrize("stop", ["--epochs=2", "--max-steps=3"])
def test_with_dropout_and_augmentation_two_parts_are_the_whole(
    stop: str, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    ok(trained(2, tmp_path / "parts", *SHORT, stop))
    done = ok(trained(2, tmp_path / "parts", *SHORT, "--resume"))
    parts = metrics(tmp_path / "parts" / "metrics.jsonl")
    for field in ("loss", "step", "epoch"):
        assert [line[field] for line in parts] == [line[field] for line in whole]
    assert [line["epoch"] for line in whole] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert parts[-1]["val_loss"] == whole[-1]["val_loss"]
    step, epochs = (4, 2) if "epochs" in stop else (3, 1)
    assert done.stdout.splitlines()[0] == (
        f"going on from {tmp_path}/parts/checkpoint.pt, step {step}, {epochs} of 4 epochs done"
    )


def test_what_has_changed_is_said_and_obeyed_or_refused(tmp_path: Path) -> None:
    ok(trained(2, tmp_path, *SHORT, "--max-steps", "3"))
    before = (tmp_path / "checkpoint.pt").read_bytes()
    refused(trained(2, tmp_path, *SHORT, "--resume", "--optimizer", "Adam"), "was made by SGD, and this is Adam")
    refused(
        trained(1, tmp_path, *SHORT, "--resume", "--seed", "5"), "shuffled by seed 0; here are 64 samples and seed 5"
    )
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    done = ok(trained(1, tmp_path, *SHORT, "--resume", "--lr", "0.1", "--epochs", "2"))
    assert done.stdout.splitlines()[0].endswith(
        ", step 3, 1 of 2 epochs done; ranks 2 → 1, global batch 32 → 16, lr 0.01 → 0.1"
    )
    assert [line["lr"] for line in metrics(tmp_path / "metrics.jsonl")] == [0.01] * 3 + [0.1] * 2
    before = (tmp_path / "checkpoint.pt").read_bytes()
    done = ok(trained(1, tmp_path, *SHORT, "--resume", "--epochs", "2"))
    assert done.stdout.startswith(f"nothing left to do: {tmp_path}/checkpoint.pt is at epoch 2 of 2 (test loss ")
    assert done.stdout.endswith("say --epochs N to go on\n")
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert len(metrics(tmp_path / "metrics.jsonl")) == 5


def test_ranks_take_equally_many_steps_of_what_is_left_of_an_epoch(tmp_path: Path) -> None:
    ok(trained(1, tmp_path, "--batch-size", "1", "--lr", "1e-4", "--max-steps", "1"))
    options = ["--batch-size", "1", "--lr", "1e-4", "--epochs", "1"]
    ok(trained(2, tmp_path, *options, "--resume", "--log-every", "1000"))
    lines = metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 1 + 1 + 63 // 2))
    assert {line["epoch"] for line in lines} == {1}
    assert lines[-1]["val_loss"] is not None


def test_what_is_evaluated_is_what_is_saved(tmp_path: Path) -> None:
    """Running statistics differ between ranks in training."""
    ok(trained(2, tmp_path, *SHORT, "--net", "norm", "--epochs", "1"))
    reported = metrics(tmp_path / "metrics.jsonl")[-1]["val_loss"]
    done = ok(trained(1, tmp_path, *SHORT, "--net", "norm", "--epochs", "1", "--resume"))
    assert f"(test loss {reported:.4g})" in done.stdout


def test_a_second_run_keeps_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    first = ok(trained(1, folder, *SHORT, "--epochs", "1"))
    assert "earlier" not in first.stdout
    files = {name: (folder / name).read_bytes() for name in ("checkpoint.pt", "metrics.jsonl")}
    second = ok(trained(2, folder, *SHORT, "--epochs", "2"))
    assert second.stdout.splitlines()[0] == (
        f"an earlier run is kept as {folder}/checkpoint.1.pt and {folder}/metrics.1.jsonl "
        f"(to go on from it: --resume {folder}/checkpoint.1.pt)"
    )
    assert (folder / "checkpoint.1.pt").read_bytes() == files["checkpoint.pt"]
    assert (folder / "metrics.1.jsonl").read_bytes() == files["metrics.jsonl"]
    assert len(metrics(folder / "metrics.jsonl")) == 4
    # as it says; the second run is kept in its turn, and the metrics are those of the first
    ok(trained(1, folder, *SHORT, "--epochs", "2", "--resume", str(folder / "checkpoint.1.pt")))
    assert sorted(path.name for path in folder.iterdir()) == [
        *("checkpoint.1.pt", "checkpoint.2.pt", "checkpoint.pt"),
        *("metrics.1.jsonl", "metrics.2.jsonl", "metrics.jsonl"),
    ]
    assert (folder / "metrics.jsonl").read_bytes().startswith(files["metrics.jsonl"])
    assert [line["epoch"] for line in metrics(folder / "metrics.jsonl")] == [1] * 4 + [2] * 4


def test_a_run_that_ends_before_it_saves_leaves_the_earlier_checkpoint_in_its_place(tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "1"))
    before = (tmp_path / "checkpoint.pt").read_bytes()
    refused(trained(1, tmp_path, *SHORT, "--nan-at", "0", "--check-finite"), "the loss is nan on rank 0", code=1)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    ok(trained(1, tmp_path, *SHORT, "--epochs", "2", "--resume"))
    assert [line["step"] for line in metrics(tmp_path / "metrics.jsonl")] == [5, 6, 7, 8]  # none of the broken run's


def test_a_full_disk_is_one_line_and_the_old_checkpoint_is_kept(tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "1"))
    before = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "limited.py").write_text(
        "import resource\nfrom resumable import main as train\ndef main(run, argv):\n"
        f"    resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) - 500},) * 2)\n    train(run, argv)\n"
    )
    path = os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")])
    options = ["--checkpoint-dir", str(tmp_path), *SHORT, "--resume"]
    full = runner(2, "limited", *options, cwd=tmp_path, PYTHONPATH=path)
    refused(full, f"runner: cannot write {tmp_path}/checkpoint.pt: File too large", code=1)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    full = trained(2, tmp_path, *SHORT, "--metrics", "/dev/full")
    refused(full, "rank 0 of 2 on host", "cannot write /dev/full: No space left on device", code=1)


def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path: Path) -> None:
    ok(trained(1, tmp_path, *SHORT, "--epochs", "1"))
    content = bytearray((tmp_path / "checkpoint.pt").read_bytes())
    content[content.index(b"data/0") + 200] ^= 16  # in the weights, which follow their record's head
    (tmp_path / "checkpoint.pt").write_bytes(content)
    refused(trained(2, tmp_path, *SHORT, "--resume"), "checkpoint.pt is damaged", "the checksum of ", "data/0 is wrong")
    assert (tmp_path / "checkpoint.pt").read_bytes() == content


def test_a_loss_that_is_no_number_is_said_once_and_ends_the_job_where_asked(tmp_path: Path) -> None:
    done = ok(trained(2, tmp_path, *SHORT, "--nan-at", "3", "--log-every", "1"))
    said = [line for line in done.stdout.splitlines() if "--check-finite" in line]
    assert len(said) == 1
    assert said[0].startswith("the loss is nan at step ")
    losses = [line["loss"] for line in metrics(tmp_path / "metrics.jsonl")]
    assert None in losses
    assert len(losses) == 8
    done = trained(2, tmp_path, *SHORT, "--nan-at", "3", "--check-finite")
    refused(done, "--check-finite: the loss is nan on rank ", " at step ", code=1)
    assert done.stderr.count("is nan on rank") == 1
