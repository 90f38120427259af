"""The workloads on real data, under a real mpirun."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launching import RUNNER, mpirun_path, ok, run, runner, torchrun
from tests.polling import LIMIT
from tests.results import metrics, refused
from tests.terminal import sent_to_terminal
from tests.turns import Turns


def test_mnist_on_digits_reaches_97_percent(turns: Turns, tmp_path: Path) -> None:
    done = ok(turns(2, "workloads.mnist", "--data", "digits", cwd=tmp_path, timeout=3 * LIMIT))
    lines = metrics(tmp_path / "runs" / "mnist")
    known = ["format", "step", "epoch", "loss", "lr", "samples_per_s"]
    assert list(lines[0]) == [*known, "val_loss", "val_accuracy"]
    used = [line for line in lines if "cpu" in line]
    assert used
    assert list(used[0]) == [*known, "cpu", "memory", "val_loss", "val_accuracy"]
    assert all(0 < line["cpu"] < 1000 and 50e6 < line["memory"] < 50e9 for line in used)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["val_accuracy"] >= 0.97
    assert sum(line["val_accuracy"] is not None for line in lines) == 15
    assert max(len(line) for line in done.stdout.splitlines() if line.startswith("epoch ")) <= 80
    ending = done.stdout.splitlines()[-4:]
    assert ending[0].startswith(f"done: {len(lines)} steps, test loss ")
    assert "images/s" in ending[0]
    places = ["metrics     runs/mnist/metrics.jsonl", f"checkpoint  runs/mnist/step-{len(lines)}"]
    assert ending[1:] == [*places, "report      python -m runner report runs/mnist"]
    assert (tmp_path / "runs" / "mnist" / f"step-{len(lines)}" / "checkpoint.json").exists()


def test_without_mnist_or_network_the_digits_are_taken_and_it_is_said(turns: Turns, tmp_path: Path) -> None:
    # A proxy that is not there stands for a cluster's node without a way out.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = ok(turns(2, "workloads.mnist", "--epochs", "1", cwd=tmp_path, **nowhere))
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MNIST is not in data and cannot be")]
    assert "training on the package's own 1,797 digits" in line


def write_mnist(folder: Path) -> None:
    """MNIST's four files, in its format (idx), with a few digits drawn as bars."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 640), ("t10k", 100)):
        labels = np.arange(count) % 10
        images = np.zeros((count, 28, 28), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 2 * label : 2 * label + 4] = 255
        for kind, array, header in (
            ("images-idx3", images, struct.pack(">IIII", 2051, count, 28, 28)),
            ("labels-idx1", labels.astype(np.uint8), struct.pack(">II", 2049, count)),
        ):
            data = header + array.tobytes()
            (raw / f"{name}-{kind}-ubyte").write_bytes(data)
            (raw / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(data))


def test_mnist_on_disk_is_taken(turns: Turns, tmp_path: Path) -> None:
    write_mnist(tmp_path / "data")
    done = ok(turns(2, "workloads.mnist", "--epochs", "4", cwd=tmp_path))
    assert "digits" not in done.stdout
    lines = metrics(tmp_path / "runs" / "mnist")
    assert len(lines) == 4 * 640 // 32
    assert lines[-1]["val_accuracy"] == 1.0


def test_linear_saves_and_resumes(turns: Turns, tmp_path: Path) -> None:
    ok(turns(2, "workloads.linear", "--epochs", "2", "--batch-size", "64", cwd=tmp_path))
    done = ok(runner(2, "workloads.linear", "--epochs", "4", "--batch-size", "64", "--resume", cwd=tmp_path))
    assert "runs/linear/step-32," in done.stdout
    assert "\x1b" not in done.stdout, "under mpirun no escape sequences reach a file"
    lines = metrics(tmp_path / "runs" / "linear")
    assert [line["epoch"] for line in lines] == [epoch for epoch in range(1, 5) for _ in range(2048 // 64 // 2)]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["val_loss"] is None


def test_under_torchrun_and_alone_with_the_runners_options_on_either_side(tmp_path: Path) -> None:
    training, device = ["workloads.linear", "--epochs", "1"], ["--device", "cpu"]
    assert "done: 32 steps" in ok(torchrun(2, *RUNNER[1:], *training, *device, cwd=tmp_path)).stdout
    assert "done: 64 steps" in ok(run(*RUNNER, *device, *training, cwd=tmp_path)).stdout


def fingerprints(
    turns: Turns, ranks: int, folder: Path, *arguments: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(what each rank printed, the metrics) of a training in double precision with a global batch of 16."""
    folder.mkdir(exist_ok=True)
    options = ["--dtype", "float64", "--global-batch-size", "16", "--checkpoint-dir", str(folder), *arguments]
    done = ok(turns(ranks, "fingerprint", *options))
    found = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("fingerprint")]
    assert len(found) == ranks
    return found, metrics(folder)


def test_same_numbers_on_1_2_and_4_ranks(turns: Turns, tmp_path: Path) -> None:
    curves = []
    for ranks in (1, 2, 4):
        found, lines = fingerprints(turns, ranks, tmp_path / str(ranks))
        assert len({rank["digest"] for rank in found}) == 1, "weights are equal on all ranks, bit for bit"
        assert {rank["steps"] for rank in found} == {4 * 18}
        assert {rank["epochs"] for rank in found} == {4}
        curves.append(lines)
    for field in ("loss", "val_loss", "val_accuracy"):
        one, two, four = ([line[field] for line in curve if line[field] is not None] for curve in curves)
        assert len(one) in (72, 4)
        assert two == pytest.approx(one, rel=1e-5)
        assert four == pytest.approx(one, rel=1e-5)
    first, last = (sum(line["loss"] for line in part) for part in (curves[0][:18], curves[0][-18:]))
    assert last < first


def test_the_learning_rate_can_be_scaled(turns: Turns, tmp_path: Path) -> None:
    _, lines = fingerprints(turns, 2, tmp_path / "plain", "--max-steps", "1", "--lr", "0.01")
    assert lines[0]["lr"] == pytest.approx(0.01)
    _, lines = fingerprints(turns, 2, tmp_path / "scaled", "--max-steps", "1", "--lr", "0.01", "--scale-lr")
    assert lines[0]["lr"] == pytest.approx(0.02)


def test_chosen_steps_are_profiled(turns: Turns, tmp_path: Path) -> None:
    """Across the end of an epoch, which has 16 steps; those of an earlier run are kept."""
    arguments = ["workloads.linear", "--epochs", "2", "--batch-size", "64", "--profile"]
    ok(turns(2, *arguments, "1", cwd=tmp_path))
    done = ok(turns(2, *arguments, "15-18", cwd=tmp_path))
    folder = tmp_path / "runs" / "linear"
    assert (folder / "profile.1").is_dir()
    for rank in range(2):
        with gzip.open(folder / "profile" / f"rank-{rank:05}.json.gz") as file:
            events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
        steps = [event["name"] for event in events if event["name"].startswith("ProfilerStep#")]
        assert steps == [f"ProfilerStep#{n}" for n in range(15, 19)]
        exchanges = [event for event in events if event["name"].endswith(":all_reduce")]
        assert exchanges
        assert all(event["args"].get("finished", True) for event in exchanges), "their ends are known"
    lines = done.stdout.splitlines()
    begin = lines.index("steps 15 to 18, ms per step:")
    assert f"traces      {Path('runs/linear/profile')}" in lines[begin + 4 :]
    for rank, line in enumerate(lines[begin + 2 : begin + 4]):
        number, step, *shares = (float(word.rstrip("%")) for word in line.split())
        assert number == rank
        assert sum(shares[::2]) == pytest.approx(step, abs=0.03)
        assert sum(shares[1::2]) == pytest.approx(100, abs=0.3)
        assert shares[0] > 0
    before = sorted(folder.iterdir())
    asked = turns(2, *arguments, "33", cwd=tmp_path)
    refused(asked, "--profile: this run makes 32 steps, and step 33 is asked for")
    assert sorted(folder.iterdir()) == before, "nothing is moved"


def test_a_bar_on_a_terminal_and_plain_lines_elsewhere(turns: Turns, tmp_path: Path) -> None:
    arguments = ["workloads.linear", "--epochs", "2", "--batch-size", "4"]
    plain = ok(turns(1, *arguments, cwd=tmp_path)).stdout
    assert "\x1b" not in plain
    assert plain.count("epoch ") == 2
    shown = sent_to_terminal(80, *RUNNER, *arguments, cwd=tmp_path)
    assert "━" in shown
    assert "epoch 2/2" in shown


def test_no_bar_under_an_mpirun_that_holds_it_until_a_newline(tmp_path: Path) -> None:
    """Open MPI 5's; 4's passes it on."""
    command = ["-np", "1", *RUNNER, "workloads.linear", "--epochs", "2", "--batch-size", "4", "--rendezvous", "file"]
    for mpirun in {mpirun_path(), *filter(os.path.exists, ["/usr/bin/mpirun.openmpi"])}:
        has_bar = ") 4." in run(mpirun, "--version").stdout  # mpirun (Open MPI) 4.1.4, mpirun.openmpi (OpenRTE) 4.1.4
        shown = sent_to_terminal(80, mpirun, *command, cwd=tmp_path)
        assert ("━" in shown) == has_bar
        assert "epoch 2/2" in shown


def test_an_option_without_effect_is_refused_by_the_benchmark(turns: Turns) -> None:
    refused(turns(1, "workloads.resnet", "--epochs", "2", "--resume"), "--epochs 2 --resume", "workloads.resnet --help")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--data imagenet", "'imagenet' is none of auto, digits, mnist, fake"),
        ("--data mnist --data-dir /proc/nothing", "--data-dir: cannot write in /proc/nothing"),
        ("--data digits --batch-size 5000", "5000"),
        ("--data digits --resume nothing.pt", "there is no complete checkpoint nothing.pt"),
        ("--data digits --metrics /tmp", "/tmp: Is a directory"),
        ("--data digits --max-steps 9 --profile 9-10", "this run makes 9 steps, and step 10 is asked"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(
    turns: Turns, arguments: str, text: str, tmp_path: Path
) -> None:
    refused(turns(2, "workloads.mnist", *arguments.split(), cwd=tmp_path), text)


def test_a_checkpoint_of_another_model(turns: Turns, tmp_path: Path) -> None:
    ok(turns(2, "workloads.linear", "--epochs", "1", "--checkpoint-dir", "out", cwd=tmp_path))
    sums = (tmp_path / "out" / "step-32" / "checkpoint.json").read_bytes()
    done = turns(2, "workloads.mnist", "--data", "digits", "--resume", "--checkpoint-dir", "out", cwd=tmp_path)
    refused(done, "checkpoint of another model (workloads.linear, this is workloads.mnist)")
    assert (tmp_path / "out" / "step-32" / "checkpoint.json").read_bytes() == sums
