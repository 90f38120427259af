"""Metrics files, progress, random numbers and data sets, without a process group."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import math
import os
import random
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy
import pytest
import torch

from runner.base.errors import RunnerError, UsageError
from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.checkpoint.file_errors import writing
from runner.training.data.random_numbers import seed_random_numbers
from runner.training.metrics.progress import Lines
from runner.training.metrics.sinks import MetricsFile, StepRecord, lines_until
from runner.training.settings import Settings
from runner.training.step_metrics import StepMetrics
from runner.training.summary import epoch_line
from tests.launching import ROOT
from workloads.data.images import digits


def record(step: int, loss: float = 1.0) -> StepRecord:
    return StepRecord(step=step, epoch=1, loss=loss, lr=0.1, samples_per_s=10.0)


def written(path: Path, records: list[StepRecord], resumed_at: int | None = None) -> None:
    with ExitStack() as stack:
        MetricsFile(path, stack, lines_until(path, resumed_at) if resumed_at else ()).write(records)


def test_resumed_metrics_go_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    written(path, [record(step) for step in range(1, 6)])
    with path.open("a") as file:
        file.write('{"step": 6, "lo')  # killed while writing
    written(path, [record(4)], resumed_at=3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("damage", "steps"),
    [(b'{"step": 3}', [1, 2, 3, 9]), (b"\x00\x00\xff\xfe\n", [1, 2, 9])],  # without its newline; after a crash
)
def test_lines_that_are_no_records_are_left_out_and_the_last_is_completed(
    tmp_path: Path, damage: bytes, steps: list[int]
) -> None:
    path = tmp_path / "m.jsonl"
    written(path, [record(1), record(2)])
    with path.open("ab") as file:
        file.write(damage)
    written(path, [record(9)], resumed_at=5)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == steps


def test_metrics_of_a_later_runner_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    written(path, [record(1)])
    assert json.loads(path.read_text())["format"] == 1
    with path.open("a") as file:
        file.write('{"format": 2, "step": 2}\n')
    with pytest.raises(UsageError, match=r"m.jsonl is of format 2, and this runner reads 1; update the runner$"):
        lines_until(path, 2)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_valid_json(tmp_path: Path, loss: float) -> None:
    written(tmp_path / "m.jsonl", [record(1, loss)])
    (line,) = (tmp_path / "m.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail)["loss"] is None


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EDQUOT, "have the quota raised"),
        (errno.EROFS, "mounted for writing"),
        (errno.EACCES, "permissions changed"),
        (errno.ENOENT, "removed its folder"),
        (errno.EIO, "dmesg"),
        (errno.ESTALE, "mounted on this host"),
        (errno.EXDEV, "name another place"),
    ],
)
def test_what_to_do_where_nothing_can_be_written_follows_from_the_cause(number: int, advice: str) -> None:
    with pytest.raises(RunnerError) as caught, writing(Path("runs/step-4"), ", then continue with --resume"):
        raise OSError(number, os.strerror(number))
    assert caught.value.message == f"cannot write runs/step-4: {os.strerror(number)}"
    assert advice in caught.value.fix
    assert caught.value.fix.endswith(", then continue with --resume")
    assert ("make room" in caught.value.fix) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_lines_about_progress_keep_to_their_beat(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    show = Lines(epochs=3, steps=110, done=10, beat=10.0, clock=lambda: now[0])
    for step in range(11, 111):  # two seconds each
        now[0] += 2
        show.step(1 + step // 40, step, None if step < 12 else 0.123456)
        if step == 20:
            show.line("epoch 1/3  and so on")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "epoch 1/3  step 15/110  loss 0.1235  0:03:10 left",
        "epoch 1/3  step 20/110  loss 0.1235  0:03:00 left",
        "epoch 1/3  and so on",
        "epoch 1/3  step 25/110  loss 0.1235  0:02:50 left",
    ]
    assert lines[-1].startswith("epoch 3/3  step 105/110")
    assert len(lines) == 1 + 19


def test_random_numbers_are_those_of_seed_step_and_rank() -> None:
    def drawn(seed: int, step: int, rank: int) -> tuple[float, float, float]:
        seed_random_numbers(seed, step, rank, torch.device("cpu"))
        return torch.rand(()).item(), random.random(), float(numpy.random.rand())

    first = drawn(0, 1, 2)
    others = [drawn(0, 1, 3), drawn(0, 2, 2), drawn(1, 1, 2), drawn(0, 12, 0), drawn(2**70, 1, 2)]
    assert drawn(0, 1, 2) == first
    assert len({number for numbers in [first, *others] for number in numbers}) == 3 * 6


def test_the_digits_are_those_of_uci_in_the_same_order() -> None:
    """The sums were compared once with what scikit-learn 1.9.1's ``load_digits()`` gives."""
    text = gzip.decompress((ROOT / "workloads" / "data" / "digits.csv.gz").read_bytes())
    assert sha256(text).hexdigest() == "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"
    (images, labels), (others, their_labels) = (data.tensors for data in digits())
    assert (images.shape, others.shape) == ((1437, 1, 28, 28), (360, 1, 28, 28))
    assert (images.min().item(), images.max().item()) == (-1.0, 1.0)
    assert (
        sha256(torch.cat([labels, their_labels]).to(torch.uint8).numpy().tobytes()).hexdigest()
        == "62128d18bd7d7c62260e4f5f72ad91e5da6b5de67afd34c3bb47f6e015a3cd45"
    )
    assert images.double().sum().item() == pytest.approx(-439600.4589843154, rel=1e-6)
    assert images[0].double().sum().item() == pytest.approx(-333.8125102519989, rel=1e-6)


@pytest.mark.parametrize("parts", [(6,), (1, 5), (2, 2, 2), (5, 1)])
def test_an_epochs_line_has_the_means_of_all_its_steps(parts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are written together: --log-every, and checkpoints, decide that."""
    monkeypatch.setattr("runner.training.step_metrics.Pace", MagicMock())
    mock = MagicMock()
    metrics = StepMetrics(mock, Settings(), mock, Position(), 12, mock, mock, None, ())
    for first in (7.0, 1.0):  # the epoch before leaves nothing
        records = [record(step, first + step) for step in range(6)]
        records[0].samples_per_s = 2.0
        metrics.begin_epoch()
        for end, part in zip(itertools.accumulate(parts), parts, strict=True):
            metrics.write(records[end - part : end])
    assert metrics.of_epoch.loss == 3.5
    assert metrics.of_epoch.samples_per_s == pytest.approx(6 / (1 / 2 + 5 / 10))
    task: Any = SimpleNamespace(unit="samples", units_per_sample=1)
    assert epoch_line(2, records[-1], metrics.of_epoch, task) == "epoch 1/2  step 5  loss 3.5  6 samples/s"
    records[-1].more = {"val_loss": 0.25, "val_f1": 0.5}  # logged by a loop of one's own
    line = epoch_line(2, records[-1], metrics.of_epoch, task)
    assert line == "epoch 1/2  step 5  loss 3.5  test loss 0.25  f1 0.5  6 samples/s"
