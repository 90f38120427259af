"""What is written about a training: one record per step, as JSON lines and as TensorBoard events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.errors import UsageError


@dataclass(kw_only=True)
class StepRecord:
    """One optimizer step. Loss is the mean over the global batch; the last step of an epoch has the evaluation."""

    step: int
    epoch: int
    loss: float
    lr: float
    samples_per_s: float
    val_loss: float | None = None
    val_accuracy: float | None = None


class MetricsFile:
    """JSON lines; on resuming, lines after the checkpoint's step are dropped and the file goes on."""

    def __init__(self, path: Path, stack: ExitStack, resumed_at: int | None) -> None:
        kept = _lines_until(path, resumed_at) if resumed_at is not None and path.exists() else []
        self._file = stack.enter_context(open(path, "w"))
        self._file.writelines(kept)
        self._file.flush()

    def write(self, records: Sequence[StepRecord]) -> None:
        """Append records, and hand them to the system."""
        self._file.writelines(json.dumps(vars(record)) + "\n" for record in records)
        self._file.flush()


class TensorBoard:
    """TensorBoard events with the same names."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise UsageError("--tensorboard needs the package tensorboard: pip install tensorboard") from None
        self._writer: Any = SummaryWriter(str(folder))
        stack.callback(self._writer.close)

    def write(self, records: Sequence[StepRecord]) -> None:
        """Add every number of the records."""
        for record in records:
            for name, value in vars(record).items():
                if name != "step" and value is not None:
                    self._writer.add_scalar(name, value, record.step)


def _lines_until(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text().splitlines(keepends=True):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError):
            continue  # a line cut off when the run before was killed
    return kept
