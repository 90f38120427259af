"""``--logger tensorboard[:DIR]``: events for TensorBoard; the default is tensorboard/ in the folder of the checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.training.loggers.logger import LoggedRun


class TensorBoard:
    """Writes events through SummaryWriter, whose thread writes the file.

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
