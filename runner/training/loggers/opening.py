"""The loggers of a run: how they start, take values and end without harm to the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from functools import partial
from typing import Any

from runner.base.errors import RunnerError, UsageError
from runner.base.in_thread import call_in_thread
from runner.base.settings import settings_in
from runner.training.loggers.logger import LoggedRun, Logger
from runner.training.loggers.registry import chosen_loggers
from runner.training.metrics.sinks import StepRecord
from runner.training.run import Run
from runner.training.settings import Settings

_END_SECONDS = 30.0  # the limit for one logger
_EARLY_END_SECONDS = 5.0  # the limit after an error: the job may be killed soon
_ERROR_CHARACTERS = 500
_PLAIN = (bool, int, float, str, type(None))


class GuardedLogger:
    """A logger whose errors become one line each, while the training continues."""

    def __init__(self, name: str, make: Callable[[], Logger], tell: Callable[[str], None]) -> None:
        """Start the logger, or raise a UsageError. ``tell`` prints a line."""
        self._name, self._tell = name, tell
        try:
            self._logger: Logger | None = make()
        except RunnerError:
            raise
        except (Exception, SystemExit) as error:  # another package's code may raise anything
            raise UsageError(
                f"{name} cannot start: {_line(error)}",
                fix="check that its target can be reached and written, or leave the logger out",
            ) from error

    def log(self, records: Sequence[StepRecord]) -> str:
        """Hand over the values of some steps. Returns a line to print if the logger has failed, else ""."""
        if self._logger is None:
            return ""
        for record in records:
            try:
                self._logger.log(record.step, record.values())
            except (Exception, SystemExit) as error:
                self._logger = None
                return f"{self._name} failed at step {record.step} ({_line(error)}); training continues without it"
        return ""

    def close(self, kind: type[BaseException] | None = None, *_: object) -> None:
        """Close the logger within a limit, as the exit of an ``ExitStack``."""
        if self._logger is None:
            return
        limit = _EARLY_END_SECONDS if kind else _END_SECONDS
        closed = call_in_thread(self._logger.close)
        wait([closed], limit)
        if not closed.done():
            self._tell(f"{self._name} has not finished within {limit:g} s; its last values may be missing")
        elif error := closed.exception():
            self._tell(f"{self._name} failed at its end ({_line(error)}); its last values may be missing")


def open_loggers(run: Run, options: Settings, step: int, stack: ExitStack) -> list[GuardedLogger]:
    """Start the loggers on rank 0; the stack closes them.

    Args:
        step: the step from which this folder's run continues; 0 for a new run.

    Raises:
        UsageError: a logger is not installed or does not start.
    """
    found = []
    for chosen in chosen_loggers(options.logger, options.checkpoint_dir):
        path = chosen.path_in(options.checkpoint_dir)
        logged = LoggedRun(
            logger=str(chosen),
            target=str(path) if path else chosen.target,
            folder=options.checkpoint_dir,
            workload=run.workload.rpartition(".")[2],
            settings=_settings(run, options),
            step=step,
        )
        logger = GuardedLogger(chosen.option, partial(chosen.load(), logged), run.print)
        stack.push(logger.close)
        found.append(logger)
    return found


def _settings(run: Run, options: Settings) -> dict[str, Any]:
    """The options by name, and the number of ranks."""
    found: dict[str, Any] = {"workload": run.workload, "ranks": run.size}
    for name, one in settings_in(type(options)).items():
        value = getattr(options, name)
        if one.is_list:
            value = " ".join(map(one.text_of, value))
        found[name] = value if isinstance(value, _PLAIN) else one.text_of(value)
    return found


def _line(error: BaseException) -> str:
    """An error's type and text, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_ERROR_CHARACTERS]}" if text else type(error).__name__
