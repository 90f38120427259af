"""``checkpoint ls|verify|export|prune``, and weights that come back by --weights."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from runner.training.checkpoint.checkpoint_folder import link_best
from tests.launching import RUNNER, ok, run
from tests.results import refused
from tests.turns import Turns

STEPS = ("--save-every=1steps", "--keep=3", "--max-steps=4", "--batch-size=64", "--log-every=1")


Checkpoint = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def checkpoint(turns: Turns) -> Checkpoint:
    return lambda *arguments: turns(1, "checkpoint", *map(str, arguments))


@pytest.mark.needs("fsdp")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_from_training_to_a_file_and_back(strategy: str, checkpoint: Checkpoint, turns: Turns, tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "model.safetensors"
    ok(turns(2, "workloads.linear", *STEPS, f"--strategy={strategy}", f"--checkpoint-dir={folder}"))
    assert "2 tensors in" in ok(checkpoint("export", folder, file)).stdout
    assert {name: tuple(tensor.shape) for name, tensor in load_file(file).items()} == {"weight": (1, 20), "bias": (1,)}
    refused(checkpoint("export", folder, file), f"{file} exists already")
    again = tmp_path / "again"
    options = [f"--weights={file}", "--lr=1e-30", "--max-steps=1", "--batch-size=64"]
    ok(turns(2, "workloads.linear", *options, "--strategy=fsdp", f"--checkpoint-dir={again}"))
    back = tmp_path / "back.safetensors"
    ok(checkpoint("export", again, back))
    assert all(load_file(back)[name].equal(tensor) for name, tensor in load_file(file).items())


def test_what_is_listed_verified_and_removed(checkpoint: Checkpoint, turns: Turns, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ok(turns(2, "workloads.linear", *STEPS, "--strategy=zero1", f"--checkpoint-dir={folder}"))
    listed = ok(run(*RUNNER, "checkpoint", "ls", str(folder))).stdout
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("step-")]
    assert names == ["step-4", "step-3", "step-2"]
    assert "workloads.linear, epoch 0, " in listed
    (damaged, *_) = sorted((folder / "step-4").glob("*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    pruned = ok(checkpoint("prune", folder, "--keep", "1"))
    assert pruned.stdout == f"removed {folder / 'step-2'}\n"
    assert f"not counted: {folder / 'step-4'} is damaged" in pruned.stderr
    told = checkpoint("verify", folder)
    assert told.returncode == 1
    assert damaged.name in told.stdout
    (folder / "step-4" / "checkpoint.json").unlink()
    for told in (checkpoint("verify", folder), checkpoint("verify", folder / "step-4")):
        assert told.returncode == 1
        assert "checkpoint.json: [Errno 2] No such file" in told.stdout
    assert "1 ok, 0 warn, 1 fail" in ok(checkpoint("ls", folder)).stdout
    folder.rename(tmp_path / "step-7")
    listed = ok(run(*RUNNER, "checkpoint", "ls", str(tmp_path / "step-7"))).stdout
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("step-")] == ["step-4", "step-3"]


def test_the_best_is_marked_and_stays(checkpoint: Checkpoint, turns: Turns, tmp_path: Path) -> None:
    ok(turns(1, "workloads.linear", *STEPS, f"--checkpoint-dir={tmp_path}"))
    link_best(tmp_path / "step-2")
    listed = ok(checkpoint("ls", tmp_path)).stdout.splitlines()
    assert [line.split()[0] for line in listed if "the best, " in line] == ["step-2"]
    assert ok(checkpoint("prune", tmp_path, "--keep", "1")).stdout == f"removed {tmp_path / 'step-3'}\n"
    assert (tmp_path / "best").resolve() == tmp_path / "step-2"


def test_a_file_of_weights_has_the_name_of_its_format(checkpoint: Checkpoint, tmp_path: Path) -> None:
    refused(checkpoint("export", tmp_path, tmp_path / "best.pt"), "name it best.safetensors")


def test_weights_that_do_not_fit_are_refused(checkpoint: Checkpoint, turns: Turns, tmp_path: Path) -> None:
    ok(turns(1, "workloads.mnist", "--data=digits", "--max-steps=1", f"--checkpoint-dir={tmp_path / 'run'}"))
    file = tmp_path / "model.safetensors"
    ok(checkpoint("export", tmp_path / "run", file))
    for weights, told in ((file, "take the same model"), ("/nowhere", "cannot be read")):
        job = [f"--weights={weights}", f"--checkpoint-dir={tmp_path / 'other'}"]
        refused(turns(2, "workloads.linear", *job), told)
    refused(run(*RUNNER, "checkpoint", "ls", str(tmp_path)), f"there is no complete checkpoint in {tmp_path}")
