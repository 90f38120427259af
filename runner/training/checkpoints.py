"""The checkpoints of a run: which one it resumes from, and which ones it writes and removes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.errors import RunnerError, UsageError
from runner.parallel.state import State, copy_part, room_for
from runner.parallel.trainer import Trainer
from runner.training import checkpoint_file, checkpoint_folder, resume
from runner.training.checkpoint_folder import SEAL, Position, Saved, Shapes, Sums
from runner.training.checkpoint_options import CheckpointOptions
from runner.training.run import Run
from runner.training.writing import writing


class Checkpoints:
    """Reads and writes a trainer's state. Every method is collective.

    If all ranks have the same state, only rank 0 touches the files, so they need not be on a shared file system. If the state
    is sharded, all ranks do.
    """

    def __init__(self, run: Run, trainer: Trainer, options: CheckpointOptions, settings: dict[str, Any]) -> None:
        self._run, self._trainer, self._options, self._settings = run, trainer, options, settings
        self._aside: tuple[Path, list[Path]] | None = None
        self._saved_at = time.monotonic()
        self._has_saved = False
        trainer.state()  # what cannot be saved is refused now, not after an epoch
        if trainer.is_sharded:
            self._check_shared_folder()

    def restore(self, *, goes_on: bool = True) -> tuple[Saved | None, list[str] | None]:
        """Resume from the checkpoint that the options name, if any.

        Args:
            goes_on: the training does, so the settings have to fit.

        Returns:
            Its content, and the settings that have changed since (None if it did not record them).

        Raises:
            UsageError: it does not exist, is damaged, or does not fit model, optimizer or data.
        """
        run, trainer = self._run, self._trainer
        if self._options.resume is None:
            return None, None
        path = run.on_main(self._find)
        if path is None:
            run.say(f"no checkpoint in {self._options.folder} yet: starting from the beginning")
            return None, None
        whole: dict[str, Tensor] = {}  # filled on rank 0
        here = trainer.shapes()
        saved, shapes, sums = run.on_main(lambda: self._open(path, whole, here))
        own = trainer.state().groups
        changes = resume.check_settings(saved, self._settings, trainer.optimizer, own) if goes_on else None
        room = room_for(trainer.model, shapes, here)
        if sums:  # sharded: every rank reads its part
            names = sorted(sums)[run.rank :: run.size]
            run.agree(_problem_of(path, {name: sums[name] for name in names}))
            checkpoint_folder.read_shards(path, room)
        else:
            for name, (shape, dtype) in shapes.items():
                _send(run, whole.get(name), shape, dtype, room.get(name))
        trainer.load(State(room, saved.groups, saved.values))
        if goes_on:
            resume.obey_changes(saved, self._settings, trainer.optimizer)
        return saved, changes if saved.settings is not None else None

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
            settings=self._settings,
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

    def _find(self) -> Path | None:
        """The checkpoint to resume from; None if none was named and none exists yet. Called on rank 0.

        Raises:
            UsageError: it does not exist.
        """
        path = Path(self._options.resume or self._options.folder)
        try:
            return self._find_in(path)
        except OSError as error:
            raise UsageError(f"--resume: {path} cannot be read: {error.strerror}") from None

    def _find_in(self, path: Path) -> Path | None:
        if path.is_file() or (path / SEAL).is_file():
            return path
        for _, newest in checkpoint_folder.steps_in(path):
            return newest
        if (path / checkpoint_file.NAME).is_file():
            return path / checkpoint_file.NAME
        if not self._options.resume:
            return None
        others = [*(str(other) for _, other in checkpoint_folder.steps_in(path.parent))]
        others += sorted(str(other) for other in path.parent.glob("checkpoint*.pt"))
        problem = f"{path} is not complete" if path.is_dir() else f"there is no checkpoint {path}"
        hint = f"; there is {', '.join(others)}" if others else ""
        raise UsageError(f"--resume: {problem}{hint}")

    def _open(
        self, path: Path, whole: dict[str, Tensor], here: dict[str, tuple[int, ...]]
    ) -> tuple[Saved, Shapes, Sums]:
        """Read a checkpoint: its content, the shapes of its tensors, and sums of files. Called on rank 0.

        The tensors are read into ``whole``, unless both checkpoint and trainer are sharded: then all ranks read them later,
        and check the files by the sums that are returned. Otherwise there are no sums.
        """
        trainer, sums = self._trainer, Sums()
        if not path.is_dir():
            saved, tensors = checkpoint_file.read_file(path, trainer.model, trainer.optimizer)
            whole.update(tensors)
        else:
            saved, sums = checkpoint_folder.unseal(path)
            by_all = trainer.is_sharded and checkpoint_folder.is_sharded(path)
            if not by_all:
                checkpoint_folder.check_files(path, sums)
                whole.update(checkpoint_folder.read_whole(path))
                sums = {}
        if sums:
            try:
                shapes = checkpoint_folder.shapes_of_shards(path)
            except Exception as error:  # the reader may raise anything for a damaged file
                checkpoint_folder.check_files(path, sums)
                raise checkpoint_folder.damaged(path, str(error)) from None
        else:
            shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in whole.items()}
        resume.check_model(saved, shapes, self._run.workload, here)
        return saved, shapes, sums


def model_weights(path: Path) -> dict[str, Tensor]:
    """The model's weights in a checkpoint, or in the newest one of a folder, by name. Called on one rank.

    Raises:
        UsageError: there is none, or it is damaged.
    """
    newest = path if (path / SEAL).is_file() else next((found for _, found in checkpoint_folder.steps_in(path)), None)
    if newest is None:
        raise UsageError(f"there is no checkpoint in {path}; train first, or name another --checkpoint-dir")
    _, sums = checkpoint_folder.unseal(newest)
    checkpoint_folder.check_files(newest, sums)
    tensors = checkpoint_folder.read_whole(newest)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}


def _problem_of(path: Path, sums: Sums) -> str | None:
    try:
        checkpoint_folder.check_files(path, sums)
    except UsageError as error:
        return str(error)
    return None


def _send(run: Run, own: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, into: Tensor | None) -> None:
    """Copy rank 0's tensor, or its part, into ``into`` on every rank that has a place for it. Collective."""
    whole = torch.empty(shape, dtype=dtype, device=run.device) if own is None else own.to(run.device).contiguous()
    if run.size > 1 and whole.numel():
        dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)  # as bytes: gloo does not support all dtypes
    if into is not None:
        copy_part(whole, into)
