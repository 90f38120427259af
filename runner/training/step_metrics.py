"""Metrics during a training: the records, the guard's board, and what the screen shows."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from runner.parallel.trainer import Trainer
from runner.parallel.trees import tensors_in
from runner.training.checkpoint.checkpoint_folder import Position, Saved
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.metrics.meter import Meter
from runner.training.metrics.output import Output, open_output
from runner.training.metrics.progress import ProgressDisplay, show_progress
from runner.training.metrics.sinks import StepRecord
from runner.training.metrics.stragglers import Pace
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.summary import EpochMeans


class StepMetrics:
    """Times each step of this rank, and gathers and writes the losses of ``--log-every`` steps together.

    Attributes:
        meter: has the losses of the steps that are not written yet.
        of_epoch: the means of the epoch's steps.
        newest: the records that were written last.
    """

    show: ProgressDisplay
    _output: Output
    _checkpoints: Checkpoints

    def __init__(
        self, run: Run, options: Settings, trainer: Trainer, position: Position, last_step: int | None
    ) -> None:
        self._run, self._options, self._trainer, self._position = run, options, trainer, position
        self._last_step, self._pace, self._board = last_step, Pace(run), run.job.board
        self.meter, self.of_epoch, self.newest = Meter(run, trainer.task), EpochMeans(), list[StepRecord]()
        self._has_reported_odd_loss = False
        # The shapes of batches since the last evaluation: a compiled model is compiled for each new one.
        self._shapes: set[object] = set()

    def open(self, saved: Saved | None, checkpoints: Checkpoints, stack: ExitStack) -> None:
        """Open the files and what the screen shows, before the first step. Collective.

        Args:
            saved: the checkpoint that this run resumes from.

        Raises:
            UsageError: a file cannot be written.
        """
        self._checkpoints = checkpoints
        self._output = open_output(self._run, self._options, saved, checkpoints, stack)
        epochs, done = self._options.epochs, self._position.step
        self.show = stack.enter_context(
            show_progress(visible=self._run.is_main, epochs=epochs, steps=self._last_step, done=done)
        )

    def begin_epoch(self) -> None:
        """Start an epoch, before its data is read."""
        self.meter.start()
        self.of_epoch = EpochMeans()
        self._shapes.clear()
        self._board.enter("warm-up")

    def begin_step(self) -> None:
        """Start a step, before its batch is read."""
        self._trainer.ready = None
        self._pace.begin()

    def see(self, batch: Any) -> None:
        """Note that the batch of this step is read."""
        self._pace.see_batch()
        shapes = tuple(tensor.shape for tensor in tensors_in(batch))
        if shapes not in self._shapes:
            self._shapes.add(shapes)
            self._board.enter("warm-up")

    def add(self, loss: Tensor) -> None:
        """Add a step that is done, and counted in the position."""
        position, pace, trainer = self._position, self._pace, self._trainer
        pace.end(trainer.ready)
        known = self.newest[-1].loss if self.newest else None
        epoch, epochs = position.epoch + 1, self._options.epochs
        self._board.step(position.step, self._last_step or 0, epoch, epochs, known, pace.newest, pace.data)
        self.meter.add(loss, position, float(trainer.optimizer.param_groups[0]["lr"]), trainer.weight)
        self.show.step(epoch, position.step, known)

    def write_if_due(self) -> None:
        """Write the records if there are as many as ``--log-every`` says. Collective."""
        if len(self.meter) == self._options.log_every:
            self.write(self.gather())
            self._board.complete()

    def write_rest(self) -> None:
        """Write the records of all steps so far: those of a checkpoint must cover all steps up to it. Collective."""
        if len(self.meter):
            self.write(self.gather())

    def gather(self) -> list[StepRecord]:
        """Return the records since the last call. Collective."""
        return self.meter.records(self._pace)

    def write(self, records: list[StepRecord]) -> None:
        """Write records. Print a line about a slow rank, and the first time that the loss is not finite. Collective.

        Raises:
            RunnerError: the records cannot be written, or losses and weights are not finite.
        """
        self.of_epoch.add(records)
        for line in self._output.write(records):
            self.show.line(line)
        odd = next((record for record in records if not math.isfinite(record.loss)), None)
        if odd and not self._has_reported_odd_loss:
            self._has_reported_odd_loss = True
            self.show.line(
                f"the loss is {odd.loss} at step {odd.step}, in epoch {odd.epoch} (--check-finite ends the job there)"
            )
        if slow := self._pace.line():
            self.show.line(slow)
        self._checkpoints.see(records)
        self.newest = records
