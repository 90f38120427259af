"""What goes into a training is checked before it begins, on all ranks; and numbers are what they were before they went in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.launching import ROOT, RUNNER, folder_of, ok, run, runner
from tests.layouts import FSDP
from tests.results import losses, metrics, refused
from tests.turns import Turns

CLOSURE = "LBFGS.step()"


@pytest.mark.parametrize(
    ("case", "texts"),
    [
        ("length", ["the training data has 64 samples on rank 0, 48 samples on rank 1"]),
        ("test length", ["the test data has 64 samples on rank 0, no samples on rank 1"]),
        ("split", ["samples of the training data are others on rank 1 than on rank 0", "manual_seed(options.seed)"]),
        ("parameters", ["models that differ: rank 0 has 0.weight "]),
        ("setting", ["the task's setting 'width' is 8 on rank 0, 9 on rank 1"]),
        ("dict", ["{'x': float32 [2, 8], 'y': int64 [2]}", "make each sample a pair (input, target)"]),
        ("three parts", ["[float32 [2, 8], int64 [2], float32 [2]]", "make each sample a pair"]),
        ("nested", ["[[float32 [2, 8], float32 [2, 8]], int64 [2]]"]),
        ("texts", ["[float32 [2, 8], a tuple of 2 str]"]),
        ("ragged", ["the data's first samples make no batch", "of the same shape"]),
        ("odd test", ["[float32 [2, 8]]"]),
        ("closure", [CLOSURE, "take an optimizer"]),
        ("no optimizer", ["the task's optimizer gives a list"]),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_first_step(
    case: str, texts: list[str], turns: Turns, tmp_path: Path
) -> None:
    refused(turns(2, "odd_tasks", "--case", case, "--checkpoint-dir", str(tmp_path)), *texts)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.needs("plan", "compare")
def test_plan_and_compare_refuse_it_too() -> None:
    compare = ["compare", "odd_tasks", "--engines", "ddp:gloo,zero1:gloo"]
    refused(runner(2, *compare, "--case", "closure", cwd=folder_of("odd_tasks")), CLOSURE)
    for option, text in (
        ("--case=closure", CLOSURE),
        ("--case=dict", "{'x': float32 [1, 8], 'y': int64 [1]}"),
        ("--batch-size=65", "64 samples on 1 data-parallel ranks"),
    ):
        plan = ["plan", "odd_tasks", "--gpus", "2", "--memory", "1GB", option]
        refused(run(*RUNNER, *plan, cwd=folder_of("odd_tasks"), PYTHONPATH=str(ROOT)), text)


def test_samples_that_are_random_on_each_rank_are_no_reason_to_refuse(turns: Turns, tmp_path: Path) -> None:
    ok(turns(2, "odd_tasks", "--case", "augmented", "--checkpoint-dir", str(tmp_path)))


@pytest.mark.parametrize(
    ("case", "text"), [("many losses", "float32 [8]"), ("asks for a closure", "Asking.step() needs a closure")]
)
def test_what_only_a_step_can_tell_is_told_in_a_line(case: str, text: str, turns: Turns, tmp_path: Path) -> None:
    refused(turns(1, "odd_tasks", "--case", case, "--checkpoint-dir", str(tmp_path)), text)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_accuracy_counts_places_and_not_the_padding(ranks: int, turns: Turns, tmp_path: Path) -> None:
    """Of each sample's four targets two are the class that is predicted, one is another, and one is none (-100)."""
    done = ok(turns(ranks, "odd_tasks", "--case", "places", "--lr", "1e-9", "--checkpoint-dir", str(tmp_path)))
    assert metrics(tmp_path)[-1]["val_accuracy"] == pytest.approx(2 / 3)
    assert "test accuracy 66.67 %" in done.stdout


def test_what_has_no_classes_has_no_accuracy(turns: Turns, tmp_path: Path) -> None:
    done = ok(turns(2, "odd_tasks", "--case", "soft", "--checkpoint-dir", str(tmp_path)))
    assert "accuracy n/a: the outputs are float32 [2, 3] and the targets float32 [2, 3]" in done.stdout
    assert "test accuracy n/a" in done.stdout
    assert metrics(tmp_path)[-1]["val_accuracy"] is None


def test_the_checks_before_a_training_leave_it_as_it_is(turns: Turns, tmp_path: Path) -> None:
    """Batch norm's buffers count the training's own calls only: four steps."""
    from safetensors.torch import load_file

    ok(turns(1, "odd_tasks", "--case", "places", "--checkpoint-dir", str(tmp_path)))
    tensors = load_file(next((tmp_path / "step-4").glob("*.safetensors")))
    assert int(tensors["model.norm.num_batches_tracked"]) == 4


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        pytest.param("ddp", "fp16", marks=pytest.mark.needs("complex")),
        pytest.param("fsdp", "bf16", marks=pytest.mark.needs("fsdp")),
    ],
)
def test_a_precision_that_complex_parameters_cannot_have_is_refused(
    strategy: str, precision: str, turns: Turns, tmp_path: Path
) -> None:
    options = ["--strategy", strategy, "--precision", precision, "--checkpoint-dir", str(tmp_path)]
    refused(turns(1, "odd_tasks", "--case", "complex", *options), f"--precision {precision}: weight is complex")


@pytest.mark.parametrize(
    "strategy", [*(pytest.param(one, marks=pytest.mark.needs("complex")) for one in ("ddp", "zero1")), FSDP]
)
def test_complex_numbers_stay_complex(strategy: str, turns: Turns, tmp_path: Path) -> None:
    """In buffers, inputs and parameters; the losses are those of one rank."""
    curves = {}
    for ranks in (1, 2):
        for case in ("rotated", "complex"):
            folder = tmp_path / f"{case} {ranks}"
            more = ["--strategy", strategy] if ranks > 1 else []
            options = ["--case", case, "--global-batch-size", "16", "--checkpoint-dir", str(folder)]
            ok(turns(ranks, "odd_tasks", *options, *more))
            curves[case, ranks] = losses(folder)
    for case in ("rotated", "complex"):
        assert curves[case, 2] == pytest.approx(curves[case, 1], rel=1e-5)
        assert curves[case, 1][-1] < curves[case, 1][0] * 1.5
        assert torch.isfinite(torch.tensor(curves[case, 1])).all()
