"""The files that a run writes. Files of an earlier run are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.settings import as_toml
from runner.options.run_file import leave_run_file
from runner.training.checkpoint.checkpoint_folder import Saved, steps_in
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.loggers.opening import GuardedLogger, open_loggers
from runner.training.metrics.sinks import MetricsFile, StepRecord, lines_until
from runner.training.run import Run
from runner.training.settings import Settings

SETTINGS = "settings.toml"  # in the checkpoints' folder: how the newest run was started


@dataclass
class Output:
    """The outputs of a run besides checkpoints; none on ranks other than 0."""

    metrics: MetricsFile | None = None
    loggers: Sequence[GuardedLogger] = ()

    def write(self, records: Sequence[StepRecord]) -> list[str]:
        """Write records, and return a line to print for each logger that fails.

        Raises:
            RunnerError: the metrics file cannot be written.
        """
        if self.metrics is not None:
            self.metrics.write(records)
        return [line for logger in self.loggers if (line := logger.log(records))]


def open_output(run: Run, options: Settings, saved: Saved | None, checkpoints: Checkpoints, stack: ExitStack) -> Output:
    """Open the output files and start the loggers, on rank 0. Files of an earlier run are kept under other names. Collective.

    Args:
        saved: the checkpoint that this run resumes from. Checkpoints of later steps count as another run's.

    Raises:
        UsageError: a file cannot be written, or a logger does not start.
    """
    output = Output()

    def open_on_main() -> tuple[Path, list[Path]]:
        folder, metrics = options.checkpoint_dir, options.metrics
        try:
            goes_on = saved is not None and _goes_on(saved.path, folder)
            kept = _metrics_of(saved, options) if saved else []
            since = saved.position.step if saved is not None and goes_on else -1
            earlier = [path for step, path in steps_in(folder) if step > since]
            aside, metrics_aside, settings_aside = kept_names(folder / "earlier", metrics, folder / SETTINGS)
            names = [aside] if earlier else []
            if _holds_something(metrics) and (earlier or not (goes_on and kept)):
                os.rename(metrics, metrics_aside)
                names.append(metrics_aside)
            if names and (folder / SETTINGS).exists():
                os.rename(folder / SETTINGS, settings_aside)
            if names:
                hint = f" (to continue from it: --resume {aside})" if earlier else ""
                run.print(f"an earlier run is kept as {' and '.join(map(str, names))}{hint}")
            output.metrics = MetricsFile(metrics, stack, kept)
            _leave_settings(folder / SETTINGS, run, options)
            places = {"checkpoints": str(folder.resolve()), "metrics": str(metrics.resolve())}
            leave_run_file(run.job, [run.job.log_folder, folder], workload=run.workload, **places)
            output.loggers = open_loggers(run, options, max(since, 0), stack)
        except OSError as error:
            raise UsageError(
                f"cannot write {error.filename}: {error.strerror}", fix="name another file or folder"
            ) from None
        return aside, earlier

    aside, earlier = run.on_main(open_on_main)
    if earlier:
        checkpoints.keep_aside(aside, earlier)
    return output


def _leave_settings(path: Path, run: Run, options: Settings) -> None:
    """Write how this run was started, which is no reason to end it where that cannot be done."""
    try:
        path.write_text(as_toml(options, {"resume"}), encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        run.print(f"cannot write {path}: {error.strerror}; continuing without it")


def _goes_on(checkpoint: Path, folder: Path) -> bool:
    """Whether a checkpoint belongs to the run that wrote this folder."""
    return checkpoint.resolve().parent == folder.resolve()


def _metrics_of(saved: Saved, options: Settings) -> list[str]:
    """The metrics up to a checkpoint; empty if the file is another run's, which does not end at that step."""
    for path in _places_of_metrics(saved.path, options):
        lines = lines_until(path, saved.position.step) if path.is_file() else []
        if lines and json.loads(lines[-1])["step"] == saved.position.step:
            return lines
    return []


def _places_of_metrics(checkpoint: Path, options: Settings) -> list[Path]:
    """Return the paths at which the metrics of a checkpoint's run may be: here, or next to it (earlier.1/step-4, metrics.1.jsonl)."""
    if _goes_on(checkpoint, options.checkpoint_dir):
        return [options.metrics]
    folder = checkpoint.resolve().parent
    return [folder / "metrics.jsonl", folder.with_name(folder.name.replace("earlier", "metrics") + ".jsonl")]


def _holds_something(path: Path) -> bool:
    """Whether this is a regular file (no device, pipe or folder) that is not empty."""
    return path.is_file() and path.stat().st_size > 0


def kept_names(*paths: Path) -> list[Path]:
    """Names to keep these files under, with the first number that is free for all: metrics.1.jsonl, earlier.1."""
    for number in count(1):
        names = [path.with_name(f"{path.stem}.{number}{path.suffix}") for path in paths]
        if not any(name.exists() for name in names):
            return names
    raise AssertionError("numbers do not end")
