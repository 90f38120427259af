"""The loggers of a run, from its settings."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from runner.base.settings import settings_in
from runner.training.loggers.background import BackgroundLogger
from runner.training.loggers.logger import LoggedRun
from runner.training.loggers.registry import chosen_loggers
from runner.training.run import Run
from runner.training.settings import Settings

_PLAIN = (bool, int, float, str, type(None))


def open_loggers(run: Run, options: Settings, step: int, stack: ExitStack) -> list[BackgroundLogger]:
    """Start the loggers on rank 0; the stack closes them.

    Args:
        step: the step of this folder's run that is continued; 0 if this is a new one.

    Raises:
        UsageError: a logger is not there or does not start.
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
        logger = BackgroundLogger(chosen.option, partial(chosen.load(), logged))
        stack.push(partial(_close, run, logger))
        found.append(logger)
    return found


def _close(
    run: Run,
    logger: BackgroundLogger,
    kind: type[BaseException] | None,
    error: BaseException | None,
    _: TracebackType | None,
) -> None:
    for line in logger.close(is_early=error is not None):
        run.print(line)


def _settings(run: Run, options: Settings) -> dict[str, Any]:
    """The options by name, and how many ranks there are."""
    found: dict[str, Any] = {"workload": run.workload, "ranks": run.size}
    for name, one in settings_in(type(options)).items():
        value = getattr(options, name)
        if one.is_list:
            value = " ".join(map(one.text_of, value))
        found[name] = value if isinstance(value, _PLAIN) else one.text_of(value)
    return found
