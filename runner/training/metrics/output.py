"""The files that a run writes. Files of an earlier run are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.settings import as_toml
from runner.options.run_file import leave_run_file
from runner.training.checkpoint.checkpoint_folder import Saved, steps_in
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.loggers.opening import GuardedLogger, open_loggers
from runner.training.metrics.sinks import MetricsFile, lines_until
from runner.training.run import Run
from runner.training.settings import Settings

SETTINGS = "settings.toml"  # in the checkpoints' folder: how the newest run was started


def open_output(
    run: Run, options: Settings, saved: Saved | None, checkpoints: Checkpoints, stack: ExitStack
) -> tuple[MetricsFile | None, Sequence[GuardedLogger]]:
    """Open the metrics file and start the loggers, on rank 0. Files of an earlier run are kept under other names. Collective.

    Args:
        saved: the checkpoint that this run resumes from. Checkpoints of later steps count as another run's.

    Raises:
        UsageError: a file cannot be written, or a logger does not start.
    """
    file: MetricsFile | None = None
    loggers: Sequence[GuardedLogger] = ()
    folder, metrics, settings = options.checkpoint_dir, options.metrics, options.checkpoint_dir / SETTINGS

    def open_on_main() -> tuple[Path, list[Path]]:
        nonlocal file, loggers
        try:
            goes_on = saved is not None and saved.path.resolve().parent == folder.resolve()
            kept = _metrics_of(saved, [metrics] if goes_on else None) if saved else []
            since = saved.position.step if saved is not None and goes_on else -1
            earlier = [path for step, path in steps_in(folder) if step > since]
            aside, metrics_aside, settings_aside = kept_names(folder / "earlier", metrics, settings)
            names = [aside] if earlier else []
            if metrics.is_file() and metrics.stat().st_size and (earlier or not (goes_on and kept)):
                os.rename(metrics, metrics_aside)
                names.append(metrics_aside)
            if names and settings.exists():
                os.rename(settings, settings_aside)
            if names:
                hint = f" (to continue from it: --resume {aside})" if earlier else ""
                run.print(f"an earlier run is kept as {' and '.join(map(str, names))}{hint}")
            file = MetricsFile(metrics, stack, kept)
            with suppress(OSError):  # the training can do without it
                settings.write_text(as_toml(options, {"resume"}), encoding="utf-8", errors="surrogateescape")
            places = {"checkpoints": str(folder.resolve()), "metrics": str(metrics.resolve())}
            leave_run_file(run.job, [run.job.log_folder, folder], workload=run.workload, **places)
            loggers = open_loggers(run, options, max(since, 0), stack)
        except OSError as error:
            raise UsageError(
                f"cannot write {error.filename}: {error.strerror}", fix="name another file or folder"
            ) from None
        return aside, earlier

    aside, earlier = run.on_main(open_on_main)
    if earlier:
        checkpoints.keep_aside(aside, earlier)
    return file, loggers


def _metrics_of(saved: Saved, places: Sequence[Path] | None) -> list[str]:
    """Return the metrics up to a checkpoint; none if no file ends at its step.

    Args:
        places: the files to look at; None for those beside the checkpoint's folder (earlier.1/step-4 and metrics.1.jsonl) and in it.
    """
    folder, step = saved.path.resolve().parent, saved.position.step
    beside = folder.with_name(folder.name.replace("earlier", "metrics") + ".jsonl")
    for path in places or (folder / "metrics.jsonl", beside):
        lines = lines_until(path, step) if path.is_file() else []
        if lines and json.loads(lines[-1])["step"] == step:
            return lines
    return []


def kept_names(*paths: Path) -> list[Path]:
    """Return names to keep these files under, with the first number that is free for all: metrics.1.jsonl, earlier.1."""
    found = ([path.with_name(f"{path.stem}.{number}{path.suffix}") for path in paths] for number in count(1))
    return next(names for names in found if not any(name.exists() for name in names))
