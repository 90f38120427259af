"""The loggers that come with the runner: TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from runner.base.environment import set_missing, unset_variables
from runner.base.errors import UsageError
from runner.base.in_thread import call_in_thread
from runner.training.loggers.logger import LoggedRun, identifier_of

_SEND_EVERY_SECONDS = 5.0
# The limits of a request at the start, where a wrong address should be told soon. Later requests are tried again for minutes.
_MLFLOW_START_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_MLFLOW_REFUSES = re.compile(r"[^\w./ -]")  # in names of metrics; older servers refuse a colon
# W&B's own limits in seconds, below the runner's. `wandb sync` sends what is left in wandb/. W&B before 0.27 knows no limit at the end.
_WANDB_LIMITS = {"WANDB_INIT_TIMEOUT": "40", "WANDB_FINISH_TIMEOUT": "25"}


class TensorBoard:
    """``--logger tensorboard[:DIR]``: writes events through SummaryWriter, whose thread writes the file.

    TensorBoard hides the values that an earlier run has written there for the same and later steps.
    """

    def __init__(self, run: LoggedRun) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(run.target, purge_step=run.step + 1)
        rows = "".join(f"| {name} | {value} |\n" for name, value in run.settings.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", run.step + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """``--logger mlflow[:URI]``: sends the values of some seconds in one request, in a thread of its own.

    MLflow chooses the default URI. A resumed run continues the same run.
    ``log_batch(synchronous=False)`` is not used: it prints a line for each request that fails, tells nothing to the
    caller, and its threads hold up the process at its end for as long as requests are tried again.
    """

    def __init__(self, run: LoggedRun) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=run.target or None)
        limits = {name: value for name, value in _MLFLOW_START_LIMITS.items() if name not in os.environ}
        set_missing(limits)
        try:
            self._run = identifier_of(run, partial(self._create, run))
            self._client.update_run(self._run, status="RUNNING")
        finally:
            unset_variables(limits)
        self._values: list[tuple[str, float, int, int]] = []
        self._send()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._values += [(_MLFLOW_REFUSES.sub("_", name), value, now, step) for name, value in values.items()]
        if self._sending.done() and time.monotonic() > self._sent + _SEND_EVERY_SECONDS:
            self._sending.result()  # raises the error of the last request
            self._send()

    def close(self) -> None:
        self._sending.result()
        self._send()
        self._sending.result()
        self._client.set_terminated(self._run)

    def _create(self, run: LoggedRun) -> str:
        from mlflow.entities import Param
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME

        name = MLFLOW_EXPERIMENT_NAME.get() or run.workload
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        made: str = self._client.create_run(number, run_name=run.name).info.run_id
        self._client.log_batch(made, params=[Param(name, str(value)) for name, value in run.settings.items()])
        return made

    def _send(self) -> None:
        from mlflow.entities import Metric

        metrics, self._values = [Metric(*one) for one in self._values], []
        self._sending: Future[None] = call_in_thread(partial(self._client.log_batch, self._run, metrics=metrics))
        self._sent = time.monotonic()


class WeightsAndBiases:
    """``--logger wandb[:[ENTITY/]PROJECT]``: hands values to W&B's own process.

    A resumed run continues the same run, in which W&B keeps the first values of a step.
    """

    def __init__(self, run: LoggedRun) -> None:
        set_missing(_WANDB_LIMITS)
        import wandb

        entity, _, project = run.target.rpartition("/")
        try:
            self._run: Any = wandb.init(
                entity=entity or None,
                project=project or wandb.setup().settings.project or run.workload,
                name=run.name,
                id=identifier_of(run, lambda: secrets.token_hex(4)),
                resume="allow",
                dir=str(run.folder),
                config=dict(run.settings),
                allow_val_change=True,
                settings=wandb.Settings(console="off"),  # leaves stdout and stderr alone
            )
        except wandb.errors.UsageError as error:  # for example without a login
            raise UsageError(
                f"--logger wandb: {' '.join(str(error).split())}",
                fix="run `wandb login` once, or set WANDB_MODE=offline",
            ) from None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self._run.step:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
