"""Fields of a task: schedules, evaluations in mid-epoch, the best checkpoint, state of its own; and a hook that stops."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.launching import ok
from tests.layouts import each_of, needing
from tests.results import metrics, refused
from tests.turns import Turns

JOB = ("task_fields", "--global-batch-size=8", "--lr=0.1", "--log-every=3")  # 8 steps in an epoch


def test_the_rate_warms_up_and_follows_a_schedule_of_the_total(turns: Turns, tmp_path: Path) -> None:
    """Also where the training is taken up in its middle."""
    folder = f"--checkpoint-dir={tmp_path}"
    ok(turns(2, *JOB, "--total", "--warmup=4", "--epochs=2", "--save-every=5steps", "--max-steps=10", folder))
    assert [line["lr"] for line in metrics(tmp_path)][:6] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, -0.1])
    ok(turns(1, *JOB, "--total", "--warmup=4", "--epochs=2", "--resume", folder))
    rates = [line["lr"] for line in metrics(tmp_path)]
    assert rates[10:] == pytest.approx([-0.1] * 6)  # of 16 steps the tenth is in the second half


def test_an_evaluation_every_few_steps_changes_nothing_else(turns: Turns, tmp_path: Path) -> None:
    ok(turns(2, *JOB, "--epochs=2", f"--checkpoint-dir={tmp_path}/plain"))
    done = ok(turns(2, *JOB, "--epochs=2", "--evaluate-every=3", f"--checkpoint-dir={tmp_path}/often"))
    plain, often = metrics(tmp_path / "plain"), metrics(tmp_path / "often")
    assert [line["loss"] for line in often] == [line["loss"] for line in plain]
    with_it = [[line["step"] for line in lines if line["val_loss"] is not None] for lines in (plain, often)]
    assert with_it == [[8, 16], [3, 6, 8, 9, 12, 15, 16]]
    assert all(line["val_largest"] < 0 for line in often if line["val_loss"] is not None)
    assert "step 3  test " in done.stdout


@each_of((2, ""), (2, "--strategy fsdp"), (2, "--strategy zero1 --save-async"))
def test_the_best_checkpoint_is_kept_beside_the_newest(ranks: int, layout: str, turns: Turns, tmp_path: Path) -> None:
    """The first half of the steps learns, the second one forgets."""
    folder = tmp_path / "run"
    best_of_loss = ["--keep-best=loss", "--total", "--evaluate-every=3", "--save-every=2steps", "--keep=1"]
    done = ok(turns(ranks, *JOB, *layout.split(), *best_of_loss, "--epochs=2", f"--checkpoint-dir={folder}"))
    evaluated = {line["step"]: line["val_loss"] for line in metrics(folder) if line["val_loss"] is not None}
    best = min(evaluated, key=lambda step: evaluated[step])
    assert best in (8, 9)
    assert sorted(path.name for path in folder.glob("step-*")) == sorted([f"step-{best}", "step-16"])
    assert (folder / "best").resolve() == folder / f"step-{best}"
    assert f"\nbest        {folder / f'step-{best}'} (loss {evaluated[best]:.4g})\n" in done.stdout
    listed = ok(turns(1, "checkpoint", "ls", str(folder))).stdout
    assert [line.split()[0] for line in listed.splitlines() if "the best, " in line] == [f"step-{best}"]
    ok(turns(1, "checkpoint", "export", str(folder / "best"), str(tmp_path / "best.safetensors")))
    resumed = ["--resume", "--epochs=3", f"--checkpoint-dir={folder}", "--keep-best=loss", "--save-every=end"]
    ok(turns(ranks, *JOB, *layout.split(), *resumed, "--lr=1e-9"))
    assert (folder / "best").resolve() == folder / f"step-{best}"  # the epoch after has not been better


def test_the_largest_of_a_metric_may_be_the_best(turns: Turns, tmp_path: Path) -> None:
    ok(turns(2, *JOB, "--keep-best=max largest", "--epochs=3", "--keep=1", f"--checkpoint-dir={tmp_path}"))
    assert (tmp_path / "best").resolve() == tmp_path / "step-24"
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-24"]
    done = ok(turns(2, *JOB, "--epochs=4", f"--resume={tmp_path}/best", f"--checkpoint-dir={tmp_path}"))
    assert "step 24, 3 of 4 epochs done" in done.stdout
    assert [line["step"] for line in metrics(tmp_path)] == [*range(1, 33)]


def test_another_run_in_the_folder_has_its_own_best(turns: Turns, tmp_path: Path) -> None:
    for _ in range(2):
        ok(turns(2, *JOB, "--keep-best=loss", "--epochs=1", f"--checkpoint-dir={tmp_path}"))
    assert (tmp_path / "best").resolve() == tmp_path / "step-8"
    (before,) = tmp_path.glob("earlier*/**/best")
    assert before.resolve() == before.parent / "step-8"


def test_one_rank_stops_the_training_with_a_checkpoint(turns: Turns, tmp_path: Path) -> None:
    done = ok(turns(2, *JOB, "--stops-at=5", "--epochs=900", f"--checkpoint-dir={tmp_path}"))
    steps = [line["step"] for line in metrics(tmp_path)]
    assert 5 <= steps[-1] < 7200
    assert f"checkpoint  {tmp_path}/step-{steps[-1]}" in done.stdout


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((2, ""), (2, ""), id="ddp"),
        pytest.param((2, "--strategy fsdp"), (1, ""), marks=needing((2, "--strategy fsdp")), id="fsdp, then alone"),
        pytest.param((1, ""), (2, "--strategy zero1"), id="alone, then zero1"),
    ],
)
def test_state_of_the_tasks_own_is_taken_up(
    first: tuple[int, str], second: tuple[int, str], turns: Turns, tmp_path: Path
) -> None:
    whole = ok(turns(1, *JOB, "--own-state", "--epochs=2", f"--checkpoint-dir={tmp_path}/whole"))
    options, done = ["--own-state", "--epochs=2", f"--checkpoint-dir={tmp_path}/parts"], whole
    for (ranks, layout), more in ((first, "--max-steps=5"), (second, "--resume")):
        done = ok(turns(ranks, *JOB, *options, *layout.split(), more))
    assert metrics(tmp_path / "parts")[-1]["loss"] == pytest.approx(metrics(tmp_path / "whole")[-1]["loss"], rel=1e-5)
    assert own_state(done) == own_state(whole)
    assert own_state(whole).startswith("own state: 16 [")


def own_state(done: subprocess.CompletedProcess[str]) -> str:
    return next(line for line in done.stdout.splitlines() if line.startswith("own state"))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--keep-best=highest"], "keep_best='highest' is none of"),
        (["--keep-best=max accuracy"], "keep_best: the evaluation has no accuracy, but loss, largest"),
        (["--warmup=-1"], "the task's warmup is -1"),
        (["--own-state", "--resets"], "Task.state(steps=…): a object has no state_dict()"),
    ],
)
def test_what_a_task_cannot_say_is_refused(more: list[str], text: str, turns: Turns, tmp_path: Path) -> None:
    refused(turns(2, *JOB, *more, f"--checkpoint-dir={tmp_path}"), text)
