"""``--logger mlflow[:URI]``: a run on MLflow's tracking server, or in a database in a file.

MLflow chooses the default URI (``MLFLOW_TRACKING_URI``). The experiment is ``MLFLOW_EXPERIMENT_NAME``, or the workload's name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

from runner.base.environment import set_missing, unset_variables
from runner.base.in_thread import call_in_thread
from runner.training.loggers.logger import LoggedRun, identifier_of

_SEND_EVERY_SECONDS = 5.0
# The limits of a request at the start, where a wrong address should be told soon. Later requests are tried again for minutes.
_START_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class MLflow:
    """Sends the values of some seconds in one request, in a thread of its own. A resumed run continues the same run.

    ``log_batch(synchronous=False)`` is not used: it prints a line for each request that fails, tells nothing to the
    caller, and its threads hold up the process at its end for as long as requests are tried again.
    """

    def __init__(self, run: LoggedRun) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=run.target or None)
        limits = {name: value for name, value in _START_LIMITS.items() if name not in os.environ}
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
        self._values += [(name, value, now, step) for name, value in values.items()]
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
