"""The record of each step of a training, and its file of JSON lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base.formats import check_format
from runner.training.checkpoint.file_errors import writing

_FORMAT = 1  # of the lines
_LEFT_OUT = ("units_per_s", "tflops_per_rank", "mfu", "cpu", "memory", "gpu", "gpu_memory")  # if they are not known


@dataclass(kw_only=True)
class StepRecord:
    """The record of an optimizer step. The loss is the mean over the global batch; the last step of an epoch has the evaluation, too."""

    step: int
    epoch: int  # the first is 1
    loss: float
    lr: float
    samples_per_s: float
    units_per_s: float | None = None  # of what the workload counts, if that is not samples: tokens
    tflops_per_rank: float | None = None  # 10^12 floating-point operations of the model per second
    mfu: float | None = None  # the share of what the device can do (model FLOPs utilisation)
    # What rank 0 uses, in the last of the records that are written together.
    cpu: float | None = None  # percent of a core, since the last reading
    memory: float | None = None  # bytes
    gpu: float | None = None  # percent of the time of the last second or less (NVML)
    gpu_memory: float | None = None  # bytes in use on it, by all processes
    val_loss: float | None = None
    val_accuracy: float | None = None
    more: dict[str, float] = field(default_factory=dict)  # what run.log() was given, and val_NAME of the task's metrics

    def entries(self) -> dict[str, Any]:
        """Return all values by name, known or not."""
        return {name: value for name, value in vars(self).items() if name != "more"} | self.more

    def values(self) -> dict[str, float]:
        """Return the known values, by name."""
        return {name: value for name, value in self.entries().items() if name != "step" and value is not None}


class MetricsFile:
    """JSON lines, appended to the earlier lines that are kept. A number that is not finite becomes null.

    Raises:
        RunnerError: the file cannot be written any further.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, stack: ExitStack, kept: Sequence[str] = ()) -> None:
        self.path = path
        if kept:
            temporary = path.with_name(f".{path.name}.new")
            with writing(path):
                temporary.write_text("".join(kept), encoding="utf-8")
                os.replace(temporary, path)
        # Unbuffered: data that a full disk refused must not be written again when the file is closed.
        self._file = stack.enter_context(open(path, "ab", buffering=0))

    def write(self, records: Sequence[StepRecord]) -> None:
        """Append records, and pass them to the operating system."""
        rest = memoryview("".join(_line({"format": _FORMAT, **record.entries()}) for record in records).encode())
        with writing(self.path):
            while rest:
                rest = rest[self._file.write(rest) :]


def lines_until(path: Path, step: int) -> list[str]:
    """Return the lines of a metrics file up to this step; lines that are no records, or were cut off, are skipped.

    Raises:
        UsageError: a later runner has written one.
    """
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int) and record["step"] <= step:
            check_format(path, record.get("format"), _FORMAT)
            kept.append(_line(record))
    return kept


def _line(record: dict[str, Any]) -> str:
    """Return JSON (RFC 8259), which has no NaN and no infinity, without the speeds and the like that are not known."""
    finite = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
        if value is not None or name not in _LEFT_OUT
    }
    return json.dumps(finite) + "\n"
