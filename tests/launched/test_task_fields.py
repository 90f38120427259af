"""Fields of a task: schedules, evaluations in mid-epoch, the best checkpoint, state of its own; and a hook that stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launching import ok
from tests.results import metrics
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


def test_one_rank_stops_the_training_with_a_checkpoint(turns: Turns, tmp_path: Path) -> None:
    done = ok(turns(2, *JOB, "--stops-at=5", "--epochs=900", f"--checkpoint-dir={tmp_path}"))
    steps = [line["step"] for line in metrics(tmp_path)]
    assert 5 <= steps[-1] < 7200
    assert f"checkpoint  {tmp_path}/step-{steps[-1]}" in done.stdout
