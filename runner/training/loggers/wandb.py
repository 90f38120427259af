"""``--logger wandb[:[ENTITY/]PROJECT]``: a run of Weights & Biases.

With ``WANDB_MODE=offline`` the run is written only to wandb/ beside the checkpoints. The default project is ``WANDB_PROJECT``, or the
workload's name.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from runner.base.environment import set_missing
from runner.base.errors import UsageError
from runner.training.loggers.logger import LoggedRun, identifier_of

# W&B's own limits in seconds, below the runner's. `wandb sync` sends what is left in wandb/. W&B before 0.27 knows no limit at the end.
_LIMITS = {"WANDB_INIT_TIMEOUT": "40", "WANDB_FINISH_TIMEOUT": "25"}


class WeightsAndBiases:
    """Hands values to W&B's own process. A resumed run continues the same run, in which W&B keeps the first values of a step."""

    def __init__(self, run: LoggedRun) -> None:
        set_missing(_LIMITS)
        import wandb

        entity, _, project = run.target.rpartition("/")
        try:
            self._run: Any = wandb.init(
                entity=entity or None,
                project=project or wandb.setup().settings.project or run.workload,
                name=run.name,
                id=identifier_of(run, lambda: secrets.token_hex(4)),
                resume="allow",
                dir=str(run.folder),
                config=dict(run.settings),
                allow_val_change=True,
                settings=wandb.Settings(console="off"),  # leaves stdout and stderr alone
            )
        except wandb.errors.UsageError as error:  # for example without a login
            raise UsageError(
                f"--logger wandb: {' '.join(str(error).split())}",
                fix="run `wandb login` once, or set WANDB_MODE=offline",
            ) from None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self._run.step:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
