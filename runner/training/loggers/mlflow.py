"""``--logger mlflow[:URI]``: a run on MLflow's tracking server, or in its database in a file.

Without URI it is what MLflow takes by itself (``MLFLOW_TRACKING_URI``). The experiment is ``MLFLOW_EXPERIMENT_NAME``, or the workload's.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from runner.base.errors import UsageError
from runner.training.loggers.logger import LoggedRun

_AT_ONCE = 1000, 100  # values and settings in a request: MLflow's limits
# What names may not have: other characters, and parts that make several paths one; older servers take no colon. And their length.
_REFUSED, _LONGEST = re.compile(r"[^\w./ -]|(?<![^/])(?:/|\.{1,2}(?![^/]))|^\.\.|/$"), 240
_EVERY = 5.0  # seconds
_REACHED = 10.0  # seconds for a connection: MLflow itself tries again for minutes


class MLflow:
    """Values are sent together, as a request may take longer than a step. A continued run is the same run there."""

    def __init__(self, run: LoggedRun) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=run.target or None)
        _check_reached(self._client.tracking_uri)
        self._run = run.identifier(lambda: self._create(run))
        self._client.update_run(self._run, status="RUNNING")
        self._values: list[tuple[str, float, int, int]] = []
        self._sent = time.monotonic()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take values, and send them if there are enough, or the last were sent some seconds ago."""
        now = int(time.time() * 1000)
        self._values += [(name, value, now, step) for name, value in values.items()]
        if len(self._values) >= _AT_ONCE[0] or time.monotonic() > self._sent + _EVERY:
            self._send()

    @staticmethod
    def name_of(name: str) -> str:
        """The name that MLflow takes in the place of one that it may refuse."""
        return _REFUSED.sub("_", name)[:_LONGEST] or "_"

    def close(self) -> None:
        """Send the rest; the run is finished."""
        self._send()
        self._client.set_terminated(self._run)

    def _create(self, run: LoggedRun) -> str:
        from mlflow.entities import Param
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME

        name = MLFLOW_EXPERIMENT_NAME.get() or run.workload
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        made: str = self._client.create_run(number, run_name=run.name).info.run_id
        settings = [Param(name, str(value)) for name, value in run.settings.items()]
        for first in range(0, len(settings), _AT_ONCE[1]):
            self._client.log_batch(made, params=settings[first : first + _AT_ONCE[1]])
        return made

    def _send(self) -> None:
        from mlflow.entities import Metric

        while self._values:
            self._client.log_batch(self._run, metrics=[Metric(*one) for one in self._values[: _AT_ONCE[0]]])
            del self._values[: _AT_ONCE[0]]
        self._sent = time.monotonic()


def _check_reached(uri: str) -> None:
    """Connect to a server once, if it is one that is reached without a proxy.

    Raises:
        UsageError: nothing answers.
    """
    scheme, host, port = (parts := urlsplit(uri)).scheme, parts.hostname, parts.port
    if scheme not in ("http", "https") or not host or (scheme in getproxies() and not proxy_bypass(host)):
        return
    try:
        socket.create_connection((host, port or {"http": 80, "https": 443}[scheme]), _REACHED).close()
    except OSError as error:
        raise UsageError(
            f"--logger mlflow: {scheme}://{host}{f':{port}' if port else ''} cannot be reached ({error})",
            fix="start the server, or name the address of one that this host reaches",
        ) from None
