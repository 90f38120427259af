"""The checkpoints that a run writes and removes."""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.gpu import is_gpu, take_device
from runner.base.errors import RunnerError, UsageError, raised_on_all_ranks
from runner.base.in_thread import call_in_thread
from runner.parallel.state import local_tensor
from runner.parallel.task import Best
from runner.parallel.trainer import Trainer
from runner.training.checkpoint import checkpoint_folder, shards
from runner.training.checkpoint.checkpoint_folder import Position, Saved, Sums
from runner.training.checkpoint.file_errors import writing
from runner.training.evaluation import Evaluation, best_number
from runner.training.finite import Finite
from runner.training.metrics.sinks import StepRecord
from runner.training.run import Run
from runner.training.settings import Settings
from runner.versions.torch_private import copy_each


class Checkpoints:
    """Writes a trainer's state. Every method is collective, except those that only ask.

    If all ranks have the same state, only rank 0 touches the files, so they need not be on a shared file system. If the state
    is sharded, all ranks write files.

    Attributes:
        longest_seconds: the longest that a checkpoint has taken on this rank, from its beginning to its end.
        spent_seconds: time of the training that all checkpoints have taken: less if a thread writes them.
    """

    longest_seconds = 0.0
    spent_seconds = 0.0

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        options: Settings,
        settings: dict[str, Any],
        saved: Saved | None,
        see_that_own: Callable[[], None],
        data_states: Callable[[], list[Any] | None],
    ) -> None:
        """Begin, before the first step.

        Args:
            settings: the options that determine the result.
            saved: the checkpoint that the run resumes from. In the run's own folder it is not written again before the next step.
            see_that_own: called on rank 0 before anything is written; raises a RunnerError if the folder is another run's now.
            data_states: returns all ranks' places in the data, on rank 0, in mid-epoch. Collective.
        """
        self._run, self._trainer, self.options, self._settings = run, trainer, options, settings
        self._see_that_own, self._data_states = see_that_own, data_states
        self._folder = options.checkpoint_dir.absolute()  # also if the program changes its working folder
        self._aside: tuple[Path, list[Path]] | None = None
        self._step, self._saved_at = -1, time.monotonic()  # step and time of the newest checkpoint
        self._has_saved = False
        # The last complete checkpoint with a finite loss; at first the one to resume from.
        self._good: Path | None = None
        self._finite = Finite(trainer.model)
        # A checkpoint, and the call that writes it or waits until it is written.
        self._unfinished: tuple[Saved, Callable[[], None]] | None = None
        self._group: Any = None
        self._staging = Staging()
        self._best = None if trainer.task.keep_best is None else Best.of(trainer.task.keep_best)
        self._best_number: float | None = None  # the number of the best evaluation so far, as rank 0 knows it
        self._is_best = False  # whether the present state has that number
        if trainer.is_sharded:
            self._check_shared_folder()
            if options.save_async:  # a thread needs its own group, of a backend that takes tensors in host memory
                self._group = dist.new_group(backend="gloo" if is_gpu(run.device) else None)
        if saved is not None:
            self._best_number = run.on_main(self._number_of_best)
            there = (path for _, path in checkpoint_folder.steps_in(self._folder))
            # A damaged one counts as good, and is kept.
            good = (path for path in there if (found := _read(path)) is None or found.finite)
            self._good = saved.path if saved.finite else next(good, None)
            if saved.path.resolve() == self._path_of(saved.position.step).resolve():
                self._step = saved.position.step

    def keep_aside(self, folder: Path, paths: list[Path]) -> None:
        """Move other runs' checkpoints to a folder when this run writes its first checkpoint."""
        self._aside = folder.absolute(), [path.absolute() for path in paths]
        if checkpoint_folder.best_in(self._folder) in self._aside[1]:
            self._best_number = None

    def see(self, records: Sequence[StepRecord]) -> None:
        """Take the records of the newest steps. Collective, with the same records on all ranks.

        Raises:
            RunnerError: a loss is not finite, and weights are not any more either.
        """
        self._finite.take(records)
        if records and self._finite.what_is_odd():
            self._check_weights(records[-1].step)

    def see_evaluation(self, evaluation: Evaluation) -> None:
        """Note whether the evaluated state is the best so far. The best state is due to be saved and kept. Collective."""
        if self._best is None:
            return
        best = self._best
        number = best_number(evaluation, best)
        # Ranks with other layers may differ in the last bits of the number: rank 0 decides.
        self._is_best = self._run.on_main(lambda: best.is_better(number, self._best_number))
        if self._is_best:
            self._best_number = number

    @property
    def best_text(self) -> str:
        """The best checkpoint and its number, as rank 0 knows them; empty without a best checkpoint."""
        path = checkpoint_folder.best_in(self.options.checkpoint_dir)
        if self._best is None or self._best_number is None or path is None:
            return ""
        return f"{path} ({self._best.name} {self._best_number:.4g})"

    def end(self, position: Position) -> None:
        """Write the last checkpoint of a training. Collective.

        Raises:
            RunnerError: it cannot be written, or the newest loss or test loss is not finite.
        """
        self.save(position)
        self.finish()
        if what := self._finite.what_is_odd():
            self._give_up(what)

    def is_due(self, position: Position, *, epoch_is_over: bool = False) -> bool:
        """Return whether ``--save-every`` asks for a checkpoint at this step, or at the end of this epoch."""
        number, unit = self.options.save_every
        if self._is_best:
            return True
        if not number or unit == "s":
            return False
        return position.step % number == 0 if unit == "steps" else epoch_is_over and position.epoch % number == 0

    def time_is_due(self) -> bool:
        """Return whether ``--save-every`` asks for a checkpoint now, by this rank's clock."""
        number, unit = self.options.save_every
        return unit == "s" and time.monotonic() - self._saved_at >= number

    def save(self, position: Position) -> None:
        """Write a checkpoint, and remove the oldest beyond ``--keep``; with ``--save-async`` while the training continues.

        Does nothing if the newest checkpoint is this step's. The last checkpoint with a finite loss is kept.

        Raises:
            RunnerError: weights are not finite, or this checkpoint or the one before cannot be written. Older ones are kept.
        """
        if position.step != self._step:
            self._check_weights(position.step)
            with self._saving():
                self._save(position)

    def finish(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            RunnerError: the checkpoint cannot be written; the older ones are kept.
        """
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            saved, write = unfinished
            with self._saving():
                write()
            self._good = saved.path if saved.finite else self._good

    def _check_weights(self, step: int) -> None:
        """End a training that cannot recover, as its weights are not finite. Collective."""
        (odd,) = self._run.sum(float(self._finite.has_odd_weights()), dimension=None)
        if odd:
            self.finish()
            what = self._finite.what_is_odd()
            self._give_up(f"{what}, and weights are not finite" if what else f"weights are not finite at step {step}")

    @raised_on_all_ranks()
    def _give_up(self, what: str) -> NoReturn:
        where = "--check-finite tells where it begins"
        if self._good is None:
            raise RunnerError(f"{what}; nothing good was saved before", fix=where)
        raise RunnerError(
            f"{what}; the last good checkpoint is {self._good}",
            fix=f"continue with --resume {self._good} and a smaller --lr, or other data; {where}",
        )

    @contextmanager
    def _saving(self) -> Iterator[None]:
        began, spent = time.monotonic(), self.spent_seconds
        with self._run.job.board.during("saving"):
            yield
        self.spent_seconds = spent + time.monotonic() - began  # replaces the time of a call within this one

    def _save(self, position: Position) -> None:
        run, trainer, is_async = self._run, self._trainer, self.options.save_async
        self.finish()
        trainer.share_buffers()
        state = trainer.state()
        saved = Saved(
            path=self._path_of(position.step),
            workload=run.workload,
            position=replace(position),  # the loop counts on in its own
            settings=self._settings,
            groups=state.groups,
            values=state.values,
            finite=not self._finite.what_is_odd(),
            data=self._data_states() if position.samples else None,
            best=self._best_number if self._is_best else None,
        )
        self._is_best = False
        self._step, self._saved_at = position.step, time.monotonic()
        here = trainer.is_sharded or run.is_main
        tensors: Mapping[str, Tensor] = state.tensors if here else {}
        if is_async:  # the next step changes the originals
            tensors = self._staging.copy(tensors)
        write: Callable[[], None] = functools.partial(self._write, saved, tensors)
        if is_async and here:
            write = call_in_thread(functools.partial(_on_device, run.device, write)).result
        self._unfinished = saved, write if trainer.is_sharded else functools.partial(run.on_main, write)
        if not is_async or trainer.left_out is not None:
            self.finish()
        if (lost := trainer.left_out) is not None:
            with raised_on_all_ranks():
                raise UsageError(f"{lost.message}; {saved.path} has all but that", fix=lost.fix)

    def _write(self, saved: Saved, tensors: Mapping[str, Tensor]) -> None:
        """Write a checkpoint: all ranks write shards, or rank 0 alone writes whole tensors. Collective for shards."""
        began, run, group, is_sharded = time.monotonic(), self._run, self._group, self._trainer.is_sharded
        staging_folder = saved.path.with_name(f".{saved.path.name}.new")

        def on_main(work: Callable[[], None]) -> None:
            run.on_main(work, group) if is_sharded else work()

        on_main(lambda: self._begin(staging_folder))
        try:
            sums = self._write_tensors(saved.path, staging_folder, tensors)
            on_main(lambda: self._publish(staging_folder, saved, sums))
        except BaseException:
            if run.is_main:
                shutil.rmtree(staging_folder, ignore_errors=True)
            raise
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

    def _write_tensors(self, path: Path, staging_folder: Path, tensors: Mapping[str, Tensor]) -> Sums:
        """Write this rank's files. Returns the sums of all files, on rank 0. Collective for shards."""
        if not self._trainer.is_sharded:
            with self._writing(path):
                return checkpoint_folder.sums_of(shards.write_part(staging_folder, tensors))
        run, group, sums = self._run, self._group, Sums()
        with run.agreeing(RunnerError, group), self._writing(path):
            sums = checkpoint_folder.sums_of(shards.write_part(staging_folder, tensors, run, group))
        everyone = run.gather(sums, group) or []
        return {name: values for own in everyone for name, values in own.items()}

    def _check_shared_folder(self) -> None:
        """Refuse a folder that is not the same on all hosts."""
        run, folder = self._run, self._folder
        marker = folder / run.on_main(lambda: f".shared-{os.urandom(4).hex()}")
        if run.is_main:
            marker.touch()
        dist.barrier()
        problem = f"--checkpoint-dir: {folder} is not the same folder on all hosts, which a sharded model needs"
        run.agree(None if marker.exists() else problem, fix="name one on a file system that they share")
        if run.is_main:
            marker.unlink()

    def _begin(self, staging_folder: Path) -> None:
        """Make the staging folder. Called on rank 0."""
        self._see_that_own()
        with self._writing(staging_folder.parent):
            if not self._has_saved:
                for stale in staging_folder.parent.glob(".step-*"):  # staging folders of a run that was killed
                    shutil.rmtree(stale, ignore_errors=True)
            shutil.rmtree(staging_folder, ignore_errors=True)
            staging_folder.mkdir()
        self._has_saved = True

    def _publish(self, staging_folder: Path, saved: Saved, sums: Sums) -> None:
        """Write the manifest, give the checkpoint its name, and remove old checkpoints. Called on rank 0."""
        with self._writing(saved.path):
            checkpoint_folder.write_manifest(staging_folder, saved, sums)
            self._move_aside()  # only now: another run's checkpoint stays where it is until this run has one
            checkpoint_folder.put_in_place(staging_folder, saved.path)
            if saved.best is not None:
                checkpoint_folder.link_best(saved.path)
        with self._writing(self._folder):
            self._prune(saved.path if saved.finite else self._good)

    def _prune(self, good: Path | None) -> None:
        """Remove the oldest checkpoints beyond ``--keep``, but neither the best nor the last good one. Called on rank 0."""
        kept = {path.resolve() for path in (good, checkpoint_folder.best_in(self._folder)) if path is not None}
        for _, path in checkpoint_folder.steps_in(self._folder)[self.options.keep :]:
            if path.resolve() not in kept:
                checkpoint_folder.remove(path)

    def _number_of_best(self) -> float | None:
        """Return the number of the best checkpoint in this run's folder, if it can be read. Called on rank 0."""
        best = checkpoint_folder.best_in(self._folder)
        saved = None if best is None else _read(best)
        return None if saved is None else saved.best

    def _path_of(self, step: int) -> Path:
        return self._folder / checkpoint_folder.name_of(step)

    def _writing(self, path: Path) -> AbstractContextManager[None]:
        then = "; nothing was saved before" if self._good is None else ", then continue with --resume"
        return writing(path, then)

    def _move_aside(self) -> None:
        if self._aside is not None:
            folder, paths = self._aside
            folder.mkdir(exist_ok=True)
            for path in paths:
                os.rename(path, folder / path.name)
            link = self._folder / checkpoint_folder.BEST
            if link.is_symlink() and checkpoint_folder.best_in(self._folder) is None:  # the best was moved, too
                link.rename(folder / link.name)
            self._aside = None


class Staging:
    """Copies a state into the host's memory, to be written while the training changes it, and uses that memory again."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}
        self._layout: Sequence[object] = ()  # names, shapes and types of the last copy
        self._shards: list[Tensor] = []  # the memory of the last copy

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Copies with the same names, valid until the next call. A DTensor's are DTensors; only this rank's shard is copied."""
        layout = [*tensors, *((tensor.shape, tensor.dtype) for tensor in tensors.values())]
        if self._shards and layout == self._layout:
            # One call for all shards: for DTensors one by one the dispatcher takes longer than the copying.
            copy_each(self._shards, [local_tensor(tensor) for tensor in tensors.values()])
        else:
            self._copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            self._layout, self._shards = layout, [local_tensor(copy) for copy in self._copies.values()]
        return self._copies


def _on_device(device: torch.device, work: Callable[[], None]) -> None:
    """Call ``work`` with this current device, which each thread has for itself."""
    take_device(device)
    work()


def _read(path: Path) -> Saved | None:
    """Return a checkpoint's content; None if it is damaged."""
    try:
        return checkpoint_folder.read_manifest(path)[0]
    except RunnerError:
        return None
