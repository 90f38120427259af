"""Loggers by themselves, with the packages that they write by; and the harm that a failing or blocking logger does not do."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.training.loggers import opening, services
from runner.training.loggers.logger import LoggedRun, Logger, identifier_of
from runner.training.loggers.opening import GuardedLogger
from runner.training.loggers.registry import LOGGERS, chosen_loggers
from runner.training.metrics.sinks import StepRecord
from tests.polling import LIMIT, poll_until


def run_of(folder: Path, logger: str, step: int = 0) -> LoggedRun:
    """The run as the runner describes it to a logger, which is named as on the command line."""
    (chosen,) = chosen_loggers([logger], folder)
    target = str(chosen.path_in(folder) or chosen.target)
    settings = {"lr": 0.1, "data": "digits", "compile": False, "clip_norm": None}
    return LoggedRun(logger=logger, target=target, folder=folder, workload="mnist", settings=settings, step=step)


def made(run: LoggedRun) -> Logger:
    (chosen,) = chosen_loggers([run.logger], run.folder)
    return chosen.load()(run)


def log(run: LoggedRun, first: int, *losses: float, **last: float) -> None:
    """Log losses from a step on; ``last``: values of the last step."""
    logger = made(run)
    for step, loss in enumerate(losses, first):
        logger.log(step, {"loss": loss} | (last if step == first + len(losses) - 1 else {}))
    logger.close()


def test_tensorboard_shows_the_settings(tmp_path: Path) -> None:
    """tests/launched/test_loggers.py shows the losses."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log(run_of(tmp_path, f"tensorboard:{tmp_path / 'board'}"), 1, 3.0)
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert "| data | digits |" in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()


@pytest.mark.filterwarnings("default")  # of SQLAlchemy
def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = run_of(tmp_path, f"mlflow:{uri}")
    log(run, 1, 3.0, 2.0, math.nan, **{"mAP@50": 0.5})  # a name that MLflow refuses
    log(replace(run, step=3), 4, 1.5)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("mnist")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [one.step for one in history] == [1, 2, 3, 4]
    assert [one.value for one in history if one.step != 3] == [3.0, 2.0, 1.5]
    assert (found.info.status, found.info.run_name, found.data.metrics["mAP_50"]) == ("FINISHED", tmp_path.name, 0.5)
    assert found.data.params.items() >= {("lr", "0.1"), ("data", "digits"), ("clip_norm", "None")}
    log(run, 1, 9.0)
    assert len(client.search_runs([experiment.experiment_id])) == 2


@pytest.mark.filterwarnings("default")
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = run_of(tmp_path, "wandb:group/project")
    log(run, 1, 3.0625, 2.0, math.inf)
    time.sleep(1.1)  # the names of its folders have the second
    log(replace(run, step=3), 4, 1.53125)
    known = json.loads((tmp_path / "loggers.json").read_text())["runs"]["wandb:group/project"]
    first, second = sorted((tmp_path / "wandb").glob(f"offline-run-*-{known}/run-{known}.wandb"))
    poll_until(lambda: b"3.0625" in first.read_bytes(), LIMIT, "W&B's service writes the first values")
    poll_until(lambda: b"1.53125" in second.read_bytes(), LIMIT, "W&B's service writes the last value")
    assert all(text in first.read_bytes() for text in (b"project", b"clip_norm", b"loss"))


def test_names_and_targets(tmp_path: Path) -> None:
    places = [one.path_in(tmp_path) for one in chosen_loggers(["tensorboard", "tensorboard:b", "mlflow"], tmp_path)]
    assert places == [tmp_path / "tensorboard", Path("b"), None]
    (database,) = chosen_loggers(["mlflow:sqlite:///a.db"], tmp_path)
    assert database.target == "sqlite:///a.db"
    with pytest.raises(UsageError, match=f"^--logger: 'tensorbord' is none of {', '.join(LOGGERS)}$"):
        chosen_loggers(["tensorbord"], tmp_path)
    with pytest.raises(UsageError, match=r"^--logger tensorboard: .*tensorboard is given twice; "):
        chosen_loggers(["tensorboard", f"tensorboard:{tmp_path}/tensorboard"], tmp_path)


def test_the_identifier_of_a_run_is_kept_for_its_continuation_only(tmp_path: Path) -> None:
    run, other = run_of(tmp_path, "wandb"), run_of(tmp_path, "mlflow")
    assert (identifier_of(run, lambda: "a"), identifier_of(other, lambda: "b")) == ("a", "b")
    assert (identifier_of(replace(run, step=1), lambda: "c"), identifier_of(run, lambda: "d")) == ("a", "d")
    (tmp_path / "loggers.json").write_text('{"format": 2, "runs": []}')
    with pytest.raises(UsageError, match=r"loggers.json is of format 2, and this runner reads 1; update the runner$"):
        identifier_of(run, lambda: "e")


class Faulty:
    """Logs steps until step ``fails_at``, and closes when it may."""

    def __init__(self, fails_at: int = 0) -> None:
        self.steps: list[int] = []
        self.fails_at = fails_at
        self.may_close = threading.Event()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("no route\nto host")
        self.steps.append(step)

    def close(self) -> None:
        self.may_close.wait(LIMIT)
        if self.fails_at < 0:
            raise ConnectionError("no route\nto host")


def records(*steps: int) -> list[StepRecord]:
    return [StepRecord(step=step, epoch=1, loss=1.0, lr=0.1, samples_per_s=1.0) for step in steps]


def test_one_that_fails_says_so_once_and_gets_no_more() -> None:
    faulty, told = Faulty(fails_at=3), list[str]()
    logger = GuardedLogger("--logger mine", lambda: faulty, told.append)
    line = "--logger mine failed at step 3 (ConnectionError: no route to host); training continues without it"
    assert [logger.log(records(1)), logger.log(records(2, 3, 4)), logger.log(records(5))] == ["", line, ""]
    logger.close()
    assert (faulty.steps, told) == ([1, 2], [])


def test_one_that_fails_at_its_end_is_one_line() -> None:
    faulty, told = Faulty(fails_at=-1), list[str]()
    faulty.may_close.set()
    GuardedLogger("--logger mine", lambda: faulty, told.append).close()
    assert told == [
        "--logger mine failed at its end (ConnectionError: no route to host); its last values may be missing"
    ]


def test_one_that_does_not_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_END_SECONDS", 0.2)
    faulty, told = Faulty(), list[str]()
    GuardedLogger("--logger mine", lambda: faulty, told.append).close()
    assert told == ["--logger mine has not finished within 0.2 s; its last values may be missing"]
    faulty.may_close.set()


@pytest.mark.parametrize(
    ("make", "told"), [(lambda: {}["key"], "KeyError: 'key'; check"), (lambda: exit(3), "SystemExit: 3; check")]
)
def test_one_that_does_not_start_is_one_line(make: Callable[[], Logger], told: str) -> None:
    with pytest.raises(UsageError, match=f"^--logger mine cannot start: {told}"):
        GuardedLogger("--logger mine", make, print)


def test_an_mlflow_server_that_goes_away_keeps_no_step_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    gives_up = threading.Event()

    def never_answered(*_: object, **__: object) -> None:
        gives_up.wait(LIMIT)
        raise ConnectionError("no route to host")

    monkeypatch.setattr(services, "_SEND_EVERY_SECONDS", 0)
    run = run_of(tmp_path, f"mlflow:sqlite:///{tmp_path}/mlflow.db")
    logger = GuardedLogger("--logger mlflow", lambda: made(run), print)
    monkeypatch.setattr(MlflowClient, "log_batch", never_answered)
    told: list[str] = []

    def fails() -> bool:
        told.append(logger.log(records(1)))
        return told[-1] != ""

    poll_until(lambda: fails() or len(told) == 9, LIMIT, "steps are logged")
    assert set(told) == {""}
    gives_up.set()
    poll_until(fails, LIMIT, "the logger fails")
    assert told[-1].endswith("(ConnectionError: no route to host); training continues without it")
    assert logger.log(records(2)) == ""
