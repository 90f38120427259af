"""The files that a run writes; what an earlier run has left there is kept."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from runner.errors import UsageError
from runner.training.metrics import MetricsFile, TensorBoard, lines_until
from runner.training.options import TrainingOptions
from runner.training.run import Run

Sink = MetricsFile | TensorBoard


def open_output(
    run: Run, options: TrainingOptions, resumed: Path | None, step: int, stack: ExitStack
) -> tuple[list[Sink], Path | None]:
    """Open what is written to on rank 0. What an earlier run has left there is kept under other names. Collective.

    Returns:
        The sinks, and where the checkpoint that is there now is to be kept when the first of this run replaces it.
    """

    def open_on_main() -> Path | None:
        try:
            goes_on = resumed is not None and resumed.resolve() == options.checkpoint.resolve()
            kept = _metrics_of(resumed, options, step) if resumed else []
            earlier = [] if goes_on else [options.checkpoint]
            earlier += [] if goes_on and kept else [options.metrics]
            names = dict(zip(earlier, _kept_names(*earlier), strict=True))
            names = {path: name for path, name in names.items() if _holds_something(path)}
            if options.metrics in names:
                os.rename(options.metrics, names[options.metrics])
            aside = names.get(options.checkpoint)
            if names:
                hint = f" (to go on from it: --resume {aside})" if aside else ""
                run.say(f"an earlier run is kept as {' and '.join(map(str, names.values()))}{hint}")
            sinks.append(MetricsFile(options.metrics, stack, kept))
            if options.tensorboard is not None:
                sinks.append(TensorBoard(options.tensorboard, stack))
        except OSError as error:
            raise UsageError(f"cannot write {error.filename}: {error.strerror}; name another file or folder") from None
        return aside

    sinks: list[Sink] = []
    return sinks, run.on_main(open_on_main)


def _metrics_of(resumed: Path, options: TrainingOptions, step: int) -> list[str]:
    """The metrics that led to a checkpoint; none where the file is another run's, as it does not come to that step."""
    path = options.metrics
    if resumed.resolve() != options.checkpoint.resolve():
        path = resumed.with_name(resumed.name.replace("checkpoint", "metrics")).with_suffix(".jsonl")
    lines = lines_until(path, step) if path.is_file() else []
    return lines if lines and json.loads(lines[-1])["step"] == step else []


def _holds_something(path: Path) -> bool:
    """Whether there is a plain file with anything in it: not a device, a pipe or a folder."""
    return path.is_file() and path.stat().st_size > 0


def _kept_names(*paths: Path) -> list[Path]:
    """Names under which these files can be kept, with the first number that none of them has used: checkpoint.1.pt."""
    for number in count(1):
        names = [path.with_name(f"{path.stem}.{number}{path.suffix}") for path in paths]
        if not any(name.exists() for name in names):
            return names
    raise AssertionError("numbers do not end")
