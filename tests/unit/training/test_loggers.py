"""Loggers by themselves, with the packages that they write by; and what a logger that fails or blocks does not do."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.training.loggers import background
from runner.training.loggers.background import BackgroundLogger
from runner.training.loggers.logger import LoggedRun, Logger
from runner.training.loggers.registry import LOGGERS, chosen_loggers
from tests.polling import LIMIT, poll_until


def run_of(folder: Path, logger: str, step: int = 0) -> LoggedRun:
    """As the runner tells a logger of it. ``logger`` is as the command line has it."""
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


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_gets_a_column_when_a_value_is_new_and_goes_on_from_the_step_of_a_resume(tmp_path: Path) -> None:
    run, path = run_of(tmp_path, "csv"), tmp_path / "metrics.csv"
    log(run, 1, 3.0, 2.0, math.nan, accuracy=0.5)
    assert rows(path)[1:] == [
        {"step": "2", "loss": "2.0", "accuracy": ""},
        {"step": "3", "loss": "nan", "accuracy": "0.5"},
    ]
    log(replace(run, step=2), 3, 1.5, 1.25)
    assert [(row["step"], row["loss"]) for row in rows(path)] == [
        ("1", "3.0"),
        ("2", "2.0"),
        ("3", "1.5"),
        ("4", "1.25"),
    ]
    log(run, 1, 9.0)
    assert [row["loss"] for row in rows(path)] == ["9.0"]
    assert len(rows(tmp_path / "metrics.1.csv")) == 4


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = run_of(tmp_path, f"tensorboard:{tmp_path / 'board'}")
    log(run, 1, 3.0, 2.0, 1.0, accuracy=0.5)
    time.sleep(1.1)  # the names of its files have the second
    log(replace(run, step=2), 3, 1.5, 1.25)
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.5), (4, 1.25)]
    assert "| data | digits |" in events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()


@pytest.mark.filterwarnings("default")  # of SQLAlchemy
def test_mlflow_goes_on_with_the_same_run(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = run_of(tmp_path, f"mlflow:{uri}")
    log(run, 1, 3.0, 2.0, math.nan, accuracy=0.5)
    log(replace(run, step=3), 4, 1.5)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("mnist")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [one.step for one in history] == [1, 2, 3, 4]
    assert [one.value for one in history if one.step != 3] == [3.0, 2.0, 1.5]
    assert (found.info.status, found.info.run_name, found.data.metrics["accuracy"]) == ("FINISHED", tmp_path.name, 0.5)
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
    places = [one.path_in(tmp_path) for one in chosen_loggers(["csv", "csv:b.csv", "tensorboard", "mlflow"], tmp_path)]
    assert places == [tmp_path / "metrics.csv", Path("b.csv"), tmp_path / "tensorboard", None]
    (database,) = chosen_loggers(["mlflow:sqlite:///a.db"], tmp_path)
    assert database.target == "sqlite:///a.db"
    with pytest.raises(UsageError, match=f"^--logger: 'tensorbord' is none of {', '.join(LOGGERS)}$"):
        chosen_loggers(["tensorbord"], tmp_path)
    with pytest.raises(UsageError, match=r"^--logger csv: .*metrics\.csv is given twice; "):
        chosen_loggers(["csv", f"csv:{tmp_path}/metrics.csv"], tmp_path)


def test_the_identifier_of_a_run_is_kept_for_its_continuation_only(tmp_path: Path) -> None:
    run, other = run_of(tmp_path, "wandb"), run_of(tmp_path, "mlflow")
    assert (run.identifier(lambda: "a"), other.identifier(lambda: "b")) == ("a", "b")
    assert (replace(run, step=1).identifier(lambda: "c"), run.identifier(lambda: "d")) == ("a", "d")
    (tmp_path / "loggers.json").write_text('{"format": 2, "runs": []}')
    with pytest.raises(UsageError, match=r"loggers.json is of format 2, and this runner reads 1; update the runner$"):
        run.identifier(lambda: "e")


class Faulty:
    """Logs what it gets, until it is told to raise an error or to block."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.fails_at = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_closed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.may_go_on.wait(LIMIT)
        if step == self.fails_at:
            raise ConnectionError("no route\nto host")
        self.steps.append(step)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_START", "_END", "_EARLY_END"):
        monkeypatch.setattr(background, limit, 0.2)
    monkeypatch.setattr(background, "_MOST", 5)


@pytest.fixture
def faulty() -> Iterator[Faulty]:
    logger = Faulty()
    yield logger
    logger.may_go_on.set()


def test_all_that_was_logged_is_written_at_the_end(faulty: Faulty) -> None:
    logger = BackgroundLogger("--logger mine", lambda: faulty)
    for step in range(1, 1001):
        logger.log(step, {})
    assert logger.close() == []
    assert (faulty.steps, faulty.is_closed) == ([*range(1, 1001)], True)


def test_one_that_fails_says_so_once_and_gets_no_more(faulty: Faulty) -> None:
    faulty.fails_at = 3
    logger = BackgroundLogger("--logger mine", lambda: faulty)
    for step in range(1, 6):
        logger.log(step, {})
    told = logger.close()
    assert told == [
        "--logger mine has failed (ConnectionError: no route to host) at step 3; training continues without it"
    ]
    assert logger.close() == []
    assert (faulty.steps, faulty.is_closed) == ([1, 2], True)


@pytest.mark.usefixtures("short")
def test_one_that_blocks_leaves_out_steps_and_ends_in_time(faulty: Faulty) -> None:
    faulty.may_go_on.clear()
    logger = BackgroundLogger("--logger mine", lambda: faulty)
    for step in range(1, 9):
        logger.log(step, {})
    assert logger.news() == ["--logger mine does not keep up: 5 steps wait for it, and later ones are left out"]
    assert logger.close() == [
        "--logger mine has not finished within 0.2 s: the last of its values may be missing, 7 steps at least"
    ]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: time.sleep(1), "--logger mine has not started within 0.2 s; see that"),
        (lambda: {}["key"], "--logger mine cannot be started: KeyError: 'key'; see that"),
        (lambda: exit(3), "--logger mine cannot be started: SystemExit: 3; see that"),
    ],
)
@pytest.mark.usefixtures("short")
def test_one_that_does_not_start_is_one_line(make: Callable[[], Logger], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        BackgroundLogger("--logger mine", make)
    assert str(caught.value).startswith(told)


def test_an_exit_handler_of_one_that_did_not_end_is_not_called(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch, short: None
) -> None:
    """As that of W&B, which waits for its service."""
    import atexit

    registered: list[object] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(atexit, "unregister", registered.remove)

    def make() -> Logger:
        atexit.register(faulty.close)
        return faulty

    assert BackgroundLogger("--logger mine", make).close() == []
    assert registered == [faulty.close]
    registered.clear()
    faulty.may_go_on.clear()
    logger = BackgroundLogger("--logger mine", make)
    logger.log(1, {})
    assert logger.close()
    assert registered == []


def test_an_exit_handler_of_another_thread_is_not_the_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a thread of the program registers while the logger starts stays, though the logger fails."""
    import atexit

    registered: list[object] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    monkeypatch.setattr(atexit, "unregister", registered.remove)
    faulty, is_starting, may_start = Faulty(), threading.Event(), threading.Event()
    faulty.fails_at = 1

    def of_the_program() -> None: ...

    def make() -> Logger:
        is_starting.set()
        assert may_start.wait(LIMIT)
        atexit.register(faulty.close)
        return faulty

    def meanwhile() -> None:
        assert is_starting.wait(LIMIT)
        atexit.register(of_the_program)
        may_start.set()

    thread = threading.Thread(target=meanwhile)
    thread.start()
    logger = BackgroundLogger("--logger mine", make)
    thread.join()
    assert registered == [of_the_program, faulty.close]
    logger.log(1, {})
    assert logger.close()
    assert registered == [of_the_program]


def test_names_that_mlflow_refuses_are_replaced_and_told_once(tmp_path: Path) -> None:
    run = run_of(tmp_path, f"mlflow:sqlite:///{tmp_path}/mlflow.db")
    logger = BackgroundLogger("--logger mlflow", lambda: made(run))
    odd = ["mAP@50", "mAP_50", "metrics/precision(B)", "/a", "a//b", "../a", "..a", "a:b", "größe", "", "x" * 300]
    for step in (1, 2):
        logger.log(step, {name: float(number) for number, name in enumerate(odd)})
    told = logger.close()
    assert len(told) == len(odd) - 2
    assert "--logger mlflow has no name 'mAP@50': 'mAP_50_' stands for it there" in told
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        found = dict(database.execute("select key, value from metrics where step = 2"))
    assert len(found) == len(odd)
    assert (found["mAP_50"], found["mAP_50_"], found["metrics/precision_B_"]) == (1.0, 0.0, 2.0)
