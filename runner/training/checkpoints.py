"""The checkpoints that a run writes and removes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from runner.errors import RunnerError
from runner.parallel.trainer import Trainer
from runner.training import checkpoint_folder
from runner.training.checkpoint_folder import Position, Saved, Sums
from runner.training.checkpoint_options import CheckpointOptions
from runner.training.run import Run
from runner.training.writing import writing


class Checkpoints:
    """Writes a trainer's state. Every method is collective.

    If all ranks have the same state, only rank 0 touches the files, so they need not be on a shared file system. If the state
    is sharded, all ranks do.
    """

    def __init__(self, run: Run, trainer: Trainer, options: CheckpointOptions, settings: dict[str, Any]) -> None:
        self._run, self._trainer, self._options, self.settings = run, trainer, options, settings
        self._aside: tuple[Path, list[Path]] | None = None
        self._saved_at = time.monotonic()
        self._has_saved = False
        trainer.state()  # what cannot be saved is refused now, not after an epoch
        if trainer.is_sharded:
            self._check_shared_folder()

    def keep_aside(self, folder: Path, paths: list[Path]) -> None:
        """Move other runs' checkpoints to a folder, but only when this run writes its first."""
        self._aside = folder, paths

    def is_due(self, position: Position) -> bool:
        """Whether ``--save-every-steps`` asks for a checkpoint at this step."""
        every = self._options.every_steps
        return every is not None and position.step % every == 0

    def time_is_due(self) -> bool:
        """Whether ``--save-every-seconds`` asks for a checkpoint now, by rank 0's clock."""
        seconds = self._options.every_seconds
        return seconds is not None and self._run.on_main(lambda: time.monotonic() - self._saved_at >= seconds)

    def save(self, position: Position) -> None:
        """Write a checkpoint, and remove the oldest beyond ``--keep``.

        Raises:
            RunnerError: it cannot be written; the older ones are kept.
        """
        run, trainer = self._run, self._trainer
        trainer.share_buffers()
        state = trainer.state()
        path = self._options.folder / checkpoint_folder.name_of(position.step)
        draft = path.with_name(f".{path.name}.new")
        saved = Saved(
            path=path,
            workload=run.workload,
            position=position,
            settings=self.settings,
            groups=state.groups,
            values=state.values,
        )
        if trainer.is_sharded:
            run.on_main(lambda: self._begin(draft))
            sums = self._write_by_all(draft, state.tensors)
            run.on_main(lambda: self._finish(draft, saved, sums))
        else:
            run.on_main(lambda: self._write(draft, saved, state.tensors))
        self._saved_at = time.monotonic()

    def _write(self, draft: Path, saved: Saved, tensors: Mapping[str, Tensor]) -> None:
        self._begin(draft)
        try:
            with writing(saved.path):
                checkpoint_folder.write_whole(draft, tensors)
                sums = checkpoint_folder.sums_of(draft.iterdir())
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._finish(draft, saved, sums)

    def _write_by_all(self, draft: Path, tensors: Mapping[str, Tensor]) -> Sums:
        """Write this rank's part next to those of the others. Returns the sums of all parts."""
        run, problem, sums = self._run, None, Sums()
        try:
            with writing(draft.parent):
                checkpoint_folder.write_shards(draft, tensors)
                sums = checkpoint_folder.sums_of(checkpoint_folder.shards_of(draft, run.rank))
        except RunnerError as error:
            problem = str(error)
        try:
            run.agree(problem, RunnerError)
        except RunnerError:
            if run.is_main:
                shutil.rmtree(draft, ignore_errors=True)
            raise
        everyone: list[Any] = [None] * run.size
        dist.all_gather_object(everyone, sums)
        return {name: values for own in everyone for name, values in own.items()}

    def _check_shared_folder(self) -> None:
        """See that all ranks write to the same folder.

        Raises:
            UsageError: on some host it is another one.
        """
        run, folder = self._run, self._options.folder
        marker = folder / run.on_main(lambda: f".shared-{os.urandom(4).hex()}")
        if run.is_main:
            marker.touch()
        dist.barrier()
        problem = f"--checkpoint-dir: {folder} is not the same folder on all hosts, which a sharded model needs"
        run.agree(None if marker.exists() else f"{problem}; name one on a file system that they share")
        if run.is_main:
            marker.unlink()

    def _begin(self, draft: Path) -> None:
        """Make the draft's folder. Called on rank 0."""
        with writing(draft.parent):
            if not self._has_saved:
                for left in draft.parent.glob(".step-*"):  # drafts of a run that was killed
                    shutil.rmtree(left, ignore_errors=True)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
        self._has_saved = True

    def _finish(self, draft: Path, saved: Saved, sums: Sums) -> None:
        try:
            with writing(saved.path):
                checkpoint_folder.seal(draft, saved, sums)
                self._move_aside()  # only now: another run's checkpoint stays where it is until this run has one
                checkpoint_folder.put_in_place(draft, saved.path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        with writing(saved.path.parent):
            for _, path in checkpoint_folder.steps_in(saved.path.parent)[self._options.keep :]:
                checkpoint_folder.remove(path)

    def _move_aside(self) -> None:
        if self._aside is not None:
            folder, paths = self._aside
            folder.mkdir(exist_ok=True)
            for path in paths:
                os.rename(path, folder / path.name)
            self._aside = None
