"""Loggers of a training under mpirun: those that are there, and two of another package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.launching import RUNNER, mpirun, ok, with_entry_points
from tests.results import metrics, refused

TRAINING = ("workloads.linear", "--batch-size", "64", "--log-every", "4")

PACKAGE = '''\
import json

class Lines:
    """Logs lines to a file."""
    def __init__(self, run):
        self.file = open(run.target, "a")
        self.file.write(json.dumps([run.step, run.workload, run.settings["epochs"], run.settings["ranks"]]) + "\\n")
    def log(self, step, values):
        self.file.write(json.dumps([step, values["loss"]]) + "\\n")
    def close(self):
        self.file.close()

class Fails(Lines):
    """Its service is gone after five steps."""
    def log(self, step, values):
        if step > 5:
            raise ConnectionResetError("the service is gone")
        super().log(step, values)
'''


@pytest.fixture
def others(tmp_path: Path) -> str:
    """A PYTHONPATH with a package that has two loggers."""
    points = "[runner.loggers]\nlines = others:Lines\nfails = others:Fails\n"
    return with_entry_points(tmp_path / "packages", "others", PACKAGE, points)


def test_loggers_get_the_same_numbers_and_one_that_fails_ends_nothing(others: str, tmp_path: Path) -> None:
    loggers = ("--logger=tensorboard:board", "--logger=lines:mine.txt", "--logger=fails:lost.txt")
    done = ok(mpirun(2, *RUNNER, *TRAINING, *loggers, "--epochs", "1", cwd=tmp_path, PYTHONPATH=others))
    told = "--logger fails failed at step 6 (ConnectionResetError: the service is gone); training continues"
    assert (done.stdout + done.stderr).count(told) == 1
    config = str(tmp_path / "runs" / "linear" / "settings.toml")
    resumed = ["--config", config, "--epochs=2", "--resume"]
    done = ok(mpirun(2, *RUNNER, *TRAINING, *resumed, cwd=tmp_path, PYTHONPATH=others))
    assert (done.stdout + done.stderr).count("--logger fails failed") == 1
    lines = metrics(tmp_path / "runs" / "linear")
    losses = [line["loss"] for line in lines]
    assert len(losses) == 32
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses, rel=1e-6)
    mine = [json.loads(line) for line in (tmp_path / "mine.txt").read_text().splitlines()]
    assert (mine.pop(0), mine.pop(16)) == ([0, "linear", 1, 2], [16, "linear", 2, 2])
    assert [loss for _, loss in mine] == losses
    assert [json.loads(line)[0] for line in (tmp_path / "lost.txt").read_text().splitlines()] == [0, *range(1, 6), 16]


@pytest.mark.parametrize(
    ("name", "target", "text", "fix"),
    [
        ("mlflow", ":http://127.0.0.1:9", "Connection refused", "; check that its target can be reached"),
        ("wandb", "", "No API key configured.", "; run `wandb login` once, or set WANDB_MODE=offline"),
        ("tensorboard", ":/proc/board", "cannot write in /proc/board: ", "; name a folder that can be written"),
    ],
)
def test_a_logger_that_cannot_start_is_one_line(name: str, target: str, text: str, fix: str, tmp_path: Path) -> None:
    nobody = {"HOME": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path), "WANDB_API_KEY": "", "WANDB_MODE": "online"}
    refused(
        mpirun(2, *RUNNER, *TRAINING, "--logger", name + target, cwd=tmp_path, **nobody), f"--logger {name}", text, fix
    )
    assert not any(file.read_text() for file in tmp_path.glob("runs/linear/metrics.jsonl"))
