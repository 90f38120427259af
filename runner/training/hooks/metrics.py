"""Metrics during a training: the records, the guard's board, and what the screen shows."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

from torch import Tensor

from runner.parallel.trainer import Trainer
from runner.parallel.trees import tensors_in
from runner.training.checkpoint.checkpoint_folder import Saved
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.hooks.state import State
from runner.training.metrics.meter import Meter, Summed
from runner.training.metrics.output import Output, open_output
from runner.training.metrics.progress import ProgressDisplay, show_progress
from runner.training.metrics.sinks import StepRecord
from runner.training.metrics.stragglers import Pace
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.summary import EpochMeans


class MetricsHook:
    """Called at each step: it times the rank's part, and gathers the losses of ``--log-every`` steps."""

    def __init__(
        self, run: Run, options: Settings, trainer: Trainer, state: State, meter: Meter, last_step: int | None
    ) -> None:
        self._run, self._options, self._trainer, self._state, self._last_step = run, options, trainer, state, last_step
        self._meter, self._pace, self._board = meter, Pace(run), run.job.board
        self.show: ProgressDisplay
        self._log: Log
        self.of_epoch = EpochMeans()
        self._known: float | None = None  # the newest loss that has been gathered
        # Of the batches since the last evaluation: what is new to a compiled model is compiled.
        self._shapes: set[object] = set()

    def open(self, saved: Saved | None, checkpoints: Checkpoints, stack: ExitStack) -> None:
        """Open the files and what the screen shows, before the first step. Collective.

        Args:
            saved: the checkpoint that this run resumes from.

        Raises:
            UsageError: a file cannot be written.
        """
        epochs, done = self._options.epochs, self._state.position.step
        output = open_output(self._run, self._options, saved, checkpoints, stack)
        self.show = stack.enter_context(
            show_progress(visible=self._run.is_main, epochs=epochs, steps=self._last_step, done=done)
        )
        self._log = Log(output, self.show, self._pace, checkpoints)

    def begin_epoch(self) -> None:
        """Reading data begins."""
        self._meter.start()
        self.of_epoch = EpochMeans()
        self._shapes.clear()
        self._board.enter("warm-up")

    def begin_step(self) -> None:
        self._trainer.ready = None
        self._pace.begin()

    def see(self, batch: Any) -> None:
        """The batch of this step is read."""
        self._pace.see_batch()
        shapes = tuple(tensor.shape for tensor in tensors_in(batch))
        if shapes not in self._shapes:
            self._shapes.add(shapes)
            self._board.enter("warm-up")

    def add(self, loss: Tensor) -> None:
        """A step is done, and counted in the position."""
        position = self._state.position
        self._pace.end(self._trainer.ready)
        self._known = self._state.records[-1].loss if self._state.records else None
        self._board.step(
            position.step,
            self._last_step or 0,
            position.epoch + 1,
            self._options.epochs,
            self._known,
            self._pace.newest,
            self._pace.data,
        )
        trainer = self._trainer
        self._meter.add(loss, position, float(trainer.optimizer.param_groups[0]["lr"]), trainer.weight)

    def show_step(self) -> None:
        position = self._state.position
        self.show.step(position.epoch + 1, position.step, self._known)

    def write_if_due(self, *others: Summed) -> None:
        """Write the records if there are as many as ``--log-every`` says. Collective."""
        if len(self._meter) == self._options.log_every:
            self.write(self.gather(*others))
            self._board.complete()

    def write_rest(self) -> None:
        """Write the records of all steps so far: those of a checkpoint must cover all steps up to it. Collective."""
        if len(self._meter):
            self.write(self.gather())

    def gather(self, *others: Summed) -> list[StepRecord]:
        """The records since the last call; ``others`` have numbers summed in the same collective. Collective."""
        return self._meter.records(self._pace, *others)

    def write(self, records: list[StepRecord]) -> None:
        """Write records. Collective."""
        self.of_epoch.add(records)
        self._state.records = self._log.write(records)

    def leave_out_pause(self) -> None:
        """The time since the last record was for a checkpoint, or an evaluation."""
        self._meter.start()


class Log:
    """Writes records, and prints a line about a slow rank, and the first time that the loss is not finite."""

    def __init__(self, output: Output, show: ProgressDisplay, pace: Pace, checkpoints: Checkpoints) -> None:
        self._output, self._show, self._pace, self._checkpoints = output, show, pace, checkpoints
        self._has_reported_odd_loss = False

    def write(self, records: list[StepRecord]) -> list[StepRecord]:
        """Write the records, and return them. Collective.

        Raises:
            RunnerError: they cannot be written, or losses and weights are not finite.
        """
        for line in self._output.write(records):
            self._show.line(line)
        odd = next((record for record in records if not math.isfinite(record.loss)), None)
        if odd and not self._has_reported_odd_loss:
            self._has_reported_odd_loss = True
            self._show.line(
                f"the loss is {odd.loss} at step {odd.step}, in epoch {odd.epoch} (--check-finite ends the job there)"
            )
        if slow := self._pace.line():
            self._show.line(slow)
        self._checkpoints.see(records)
        return records
