"""The options that say where and when checkpoints are written, and where a training resumes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from runner.quantities import duration, not_negative, positive, positive_float

AUTO = "auto"  # the newest that is intact


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Where and when checkpoints are written. One is always written after the last step."""

    folder: Path
    every_epochs: int  # 0: not by epochs
    every_steps: int | None
    every_seconds: float | None
    keep: int  # so many checkpoints; older ones of this run are removed
    resume: str | None  # a checkpoint, "" for the newest in the folder, AUTO, None for a fresh start
    is_async: bool = False  # written by a thread while the training goes on
    time_limit: float | None = (
        None  # seconds from the start until the job is ended; None: as the scheduler says, if it does
    )
    time_to_save: float | None = None  # seconds before that which a step and a checkpoint may take at least
    requeue: bool = False
    weights: Path | None = None  # what a fresh start begins with: a file of `checkpoint export`

    @property
    def resume_from(self) -> Path:
        """Where ``--resume`` looks: a checkpoint that was named, or the folder."""
        return self.folder if self.resume in (None, "", AUTO) else Path(str(self.resume))


def add_checkpoint_options(parser: argparse.ArgumentParser, folder: Path) -> None:
    """Add the group to a parser, with the default folder."""
    group = parser.add_argument_group("checkpoints", "step-N/ in --checkpoint-dir: complete, or not there")
    group.add_argument("--checkpoint-dir", type=Path, default=folder, metavar="DIR", help="(default: %(default)s)")
    group.add_argument(
        "--save-every",
        type=not_negative,
        default=1,
        metavar="N",
        help="epochs between checkpoints; 0 is at the end only (default: %(default)s)",
    )
    group.add_argument("--save-every-steps", type=positive, metavar="N", help="steps between checkpoints")
    group.add_argument(
        "--save-every-seconds",
        "--checkpoint-every-seconds",
        type=positive_float,
        metavar="S",
        help="seconds between checkpoints",
    )
    group.add_argument(
        "--save-async",
        action="store_true",
        help="go on training while a checkpoint is written; takes memory on the host for a second copy of the state",
    )
    group.add_argument(
        "--keep", type=positive, default=2, metavar="N", help="of this run, the newest N (default: %(default)s)"
    )
    group.add_argument(
        "--time-limit",
        type=duration,
        metavar="TIME",
        help="save and end, with exit code 75, before the job has run for this long: minutes, H:M:S or D-H:M:S "
        "(default: where Slurm or TORQUE says when it ends); SIGTERM and SIGUSR1 do the same at once",
    )
    group.add_argument(
        "--time-to-save",
        type=positive_float,
        metavar="S",
        help="seconds before the time limit at which it does so at the latest (default: a minute, or a tenth of the time if that is "
        "less); earlier where the longest step and checkpoint so far have taken longer",
    )
    group.add_argument(
        "--requeue", action="store_true", help="after that put the job back into Slurm's queue (scontrol requeue)"
    )
    group.add_argument(
        "--weights", type=Path, metavar="FILE", help="start from these weights, which `checkpoint export` has written"
    )
    group.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="CHECKPOINT",
        help="go on from a checkpoint: this one, or the newest in --checkpoint-dir if there is one; auto passes over damaged ones",
    )


def read_checkpoint_options(given: argparse.Namespace) -> CheckpointOptions:
    """The group's options as they were given."""
    return CheckpointOptions(
        folder=given.checkpoint_dir,
        every_epochs=given.save_every,
        every_steps=given.save_every_steps,
        every_seconds=given.save_every_seconds,
        keep=given.keep,
        is_async=given.save_async,
        resume=given.resume,
        weights=given.weights,
        time_limit=given.time_limit,
        time_to_save=given.time_to_save,
        requeue=given.requeue,
    )
