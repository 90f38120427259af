"""What courses teach about models that are sharded, each by one command: FSDP on MNIST, AlexNet in a pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.launching import ok
from tests.layouts import case, needing
from tests.results import losses, refused
from tests.turns import Turns

MNIST = ["workloads.mnist", "--data", "digits", "--dtype", "float64", "--global-batch-size", "32", "--max-steps"]


@needing((4, "--pp 2"))
def test_alexnet_two_way_data_parallel_two_stages_eight_micro_batches(turns: Turns, tmp_path: Path) -> None:
    options = ["--pp", "2", "--micro-batches", "8", "--batch-size", "8", "--dropout", "0", "--max-steps", "2"]
    done = ok(turns(4, "workloads.alexnet", "--data", "fake", *options, cwd=tmp_path))
    assert "done: 2 steps, test loss 2.3" in done.stdout
    found = losses(tmp_path / "runs" / "alexnet")
    assert found == pytest.approx([2.3, 2.3], abs=0.05)  # ln 10, as images are random
    assert found[1] < found[0]


@pytest.mark.parametrize(
    ("ranks", "job"),
    [
        case(2, "workloads.cifar10 --data fake --max-steps 2 --batch-size 4 --strategy fsdp"),
        case(2, "workloads.linear --max-steps 2 --strategy zero1 --check-replicas 1"),
    ],
)
def test_a_workload_takes_what_all_take(ranks: int, job: str, turns: Turns, tmp_path: Path) -> None:
    assert "done: 2 steps" in ok(turns(ranks, *job.split(), cwd=tmp_path)).stdout


@pytest.mark.parametrize("hook", ["bf16", "fp16", "powersgd"])
def test_compressed_gradients_are_near_whole_ones(hook: str, turns: Turns, tmp_path: Path) -> None:
    """And not the same: then nothing would be compressed. PowerSGD begins after ten steps."""
    curves = []
    for name in ("none", hook):
        job = ["workloads.mnist", "--data", "digits", "--max-steps", "30", "--log-every", "1", "--comm-hook", name]
        ok(turns(2, *job, "--global-batch-size", "64", "--checkpoint-dir", str(tmp_path / name)))
        curves.append(losses(tmp_path / name))
    whole, compressed = curves
    assert compressed == pytest.approx(whole, rel=0.2)
    assert compressed[:10] == whole[:10] if hook == "powersgd" else compressed != whole
    assert compressed[12:] != whole[12:]


@pytest.mark.needs("fsdp")
def test_micro_batches_that_use_other_parameters_have_gradients_of_their_own(turns: Turns) -> None:
    for options in ("--replicate 2 replicate", "--replicate 2 replicate units", "units"):
        lines = ok(turns(4, "alternates", *f"--strategy fsdp {options}".split())).stdout.splitlines()
        assert sorted(lines) == [f"rank {rank}: True" for rank in range(4)], options


@pytest.mark.needs("fsdp")
def test_accumulated_gradients_are_shards(turns: Turns) -> None:
    """A rank never has them whole between two micro-batches: half of 2 × (8 × 8 + 8) numbers."""
    lines = ok(turns(2, "accumulates")).stdout.splitlines()
    assert sorted(lines) == ["rank 0: [0, 72, 72]", "rank 1: [0, 72, 72]"]


def test_an_outer_optimizer_follows_what_the_ranks_have_moved(turns: Turns) -> None:
    lines = ok(turns(2, "outer_steps")).stdout.splitlines()
    assert len(lines) == 2
    assert all(float(line.split()[2]) < 1e-12 for line in lines), lines


@pytest.mark.needs("fsdp")
def test_resnet_sharded(turns: Turns, tmp_path: Path) -> None:
    counts = ["--warmup-batches", "1", "--batches-per-iteration", "1", "--iterations", "1"]
    size = ["--model", "resnet18", "--image-size", "32", "--batch-size", "2"]
    done = ok(turns(2, "workloads.resnet", *size, *counts, "--strategy", "fsdp", cwd=tmp_path))
    assert "total images/s on 2 rank(s)" in done.stdout


@pytest.mark.parametrize(
    ("ranks", "job"),
    [
        case(2, "workloads.linear --precision fp16"),
        case(2, "workloads.linear --precision fp16 --strategy fsdp"),
        case(2, "workloads.mnist --precision fp16 --data digits --pp 2 --micro-batches 2"),
    ],
)
def test_a_scaler_goes_on_as_well(ranks: int, job: str, turns: Turns, tmp_path: Path) -> None:
    def scaler_after(folder: str, *steps: int) -> dict[str, float]:
        for number, step in enumerate(steps):
            resume = ["--resume"] if number else []
            options = ["--max-steps", str(step), "--log-every", "1", *resume]
            ok(turns(ranks, *job.split(), *options, "--checkpoint-dir", str(tmp_path / folder)))
        content = json.loads((tmp_path / folder / f"step-{steps[-1]}" / "checkpoint.json").read_text())
        found: dict[str, float] = content["content"]["values"]["scaler"]
        return found

    whole, parts = scaler_after("whole", 6), scaler_after("parts", 4, 6)
    assert whole == parts
    assert 4 <= whole["_growth_tracker"] <= 6  # steps since the last that overflowed: it is not begun anew
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


@pytest.fixture(scope="module")
def expected(turns: Turns, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of data parallelism on MNIST."""
    folder = tmp_path_factory.mktemp("ddp")
    ok(turns(2, *MNIST, "8", cwd=folder))
    found = losses(folder / "runs" / "mnist")
    assert len(found) == 8
    return found


@pytest.mark.parametrize("strategy", [pytest.param("fsdp", marks=pytest.mark.needs("fsdp")), "zero1"])
def test_mnist_sharded_has_the_losses_of_data_parallelism(
    strategy: str, expected: list[float], turns: Turns, tmp_path: Path
) -> None:
    ok(turns(2, *MNIST, "8", "--strategy", strategy, cwd=tmp_path))
    assert losses(tmp_path / "runs" / "mnist") == pytest.approx(expected, rel=1e-9)


@needing((4, "--pp 4"))
def test_mnist_in_as_many_stages_as_it_has_layers_with_weights(
    expected: list[float], turns: Turns, tmp_path: Path
) -> None:
    ok(turns(4, *MNIST, "2", "--pp", "4", cwd=tmp_path))
    assert losses(tmp_path / "runs" / "mnist") == pytest.approx(expected[:2], rel=1e-9)


@needing((2, "--pp 2"))
@pytest.mark.parametrize("what", ["flattens", "doubles"])
def test_a_model_that_computes_between_its_parts_cannot_be_cut(what: str, turns: Turns, tmp_path: Path) -> None:
    """Every stage would: the second takes no input that is flat, and what is doubled twice is wrong without a word."""
    job = ["computes_between", "--what", what, "--pp", "2", "--checkpoint-dir", str(tmp_path)]
    refused(turns(2, *job), "Plan.pipeline cuts the model into", "such as nn.Flatten")
