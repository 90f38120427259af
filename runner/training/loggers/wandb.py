"""``--logger wandb[:[ENTITY/]PROJECT]``: a run of Weights & Biases; with ``WANDB_MODE=offline`` only in wandb/ beside the checkpoints.

Without PROJECT it is ``WANDB_PROJECT``, or the workload's name.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from runner.base.environment import set_missing
from runner.base.errors import UsageError
from runner.training.loggers.logger import LoggedRun

# Its own limits in seconds, below the runner's, whose message says less. What is not sent at the end is in wandb/, for `wandb sync`.
_LIMITS = {"WANDB_INIT_TIMEOUT": "40", "WANDB_FINISH_TIMEOUT": "25"}


class WeightsAndBiases:
    """A continued run is the same run there. It keeps the first values of a step; those that it gets again are left out."""

    def __init__(self, run: LoggedRun) -> None:
        set_missing(_LIMITS)
        import wandb

        entity, _, project = run.target.rpartition("/")
        try:
            self._run: Any = wandb.init(
                entity=entity or None,
                project=project or wandb.setup().settings.project or run.workload,
                name=run.name,
                id=run.identifier(lambda: secrets.token_hex(4)),
                resume="allow",
                dir=str(run.folder),
                config=dict(run.settings),
                allow_val_change=True,
                settings=wandb.Settings(console="off"),  # what rank 0 prints is its own
            )
        except wandb.errors.UsageError as error:  # as without a login
            raise UsageError(
                f"--logger wandb: {' '.join(str(error).split())}",
                fix="run `wandb login` once, or set WANDB_MODE=offline",
            ) from None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Hand over values; W&B sends them from a process of its own."""
        if step >= self._run.step:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send the rest."""
        self._run.finish()
