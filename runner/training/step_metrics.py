"""Metrics during a training: the records of its steps, the guard's board, and what the screen shows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.comparing import bounds, number_of
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.batch_forms import form_of
from runner.parallel.trainer import Trainer
from runner.parallel.trees import tensors_in
from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.checkpoint.checkpoints import Checkpoints
from runner.training.loggers.opening import GuardedLogger
from runner.training.metrics.progress import ProgressDisplay
from runner.training.metrics.sinks import MetricsFile, StepRecord
from runner.training.metrics.speed import UsageReader, speeds
from runner.training.metrics.stragglers import Pace
from runner.training.run import Run
from runner.training.settings import Settings
from runner.training.summary import EpochMeans


class StepMetrics:
    """Times each step of this rank, and keeps its loss on the device until those of ``--log-every`` steps are gathered and written.

    Attributes:
        of_epoch: the means of the epoch's steps.
        newest: the records that were written last.
    """

    def __init__(
        self,
        run: Run,
        options: Settings,
        trainer: Trainer,
        position: Position,
        last_step: int | None,
        checkpoints: Checkpoints,
        show: ProgressDisplay,
        file: MetricsFile | None,
        loggers: Sequence[GuardedLogger],
    ) -> None:
        self._run, self._options, self._trainer, self._position = run, options, trainer, position
        self._checkpoints, self.show, self._file, self._loggers = checkpoints, show, file, loggers
        self._last_step, self._pace, self._board = last_step, Pace(run), run.job.board
        self.of_epoch, self.newest = EpochMeans(), list[StepRecord]()
        self._has_reported_odd_loss = False
        # The shapes of batches since the last evaluation: a compiled model is compiled for each new one.
        self._shapes: set[object] = set()
        # The steps since the last records: with its loss on this rank, that loss's weight in the mean, and other noted numbers.
        self._steps: list[tuple[StepRecord, Tensor, float, dict[str, Tensor]]] = []
        self._noted: dict[str, Tensor] = {}  # of this step, by name
        self._started, self._seconds = time.perf_counter(), 0.0
        self._samples = self._all_samples = 0  # since the last records, and before
        self._usage = UsageReader(run.device)

    def start(self) -> None:
        """Start the clock: the time since the last records was not training, but a checkpoint or an evaluation."""
        self._started = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leave out seconds that were not training."""
        self._started += seconds

    def begin_epoch(self) -> None:
        """Start an epoch, before its data is read."""
        self.start()
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

    def note(self, values: Mapping[str, float | Tensor]) -> None:
        """Add numbers to this step's record; they replace others of the same names."""
        self._noted |= {name: logged_number(name, value, self._run.device) for name, value in values.items()}

    def add(self, loss: Tensor, samples: int) -> None:
        """Add a step that is done, and counted in the position. ``samples``: those that all ranks have used."""
        position, pace, trainer = self._position, self._pace, self._trainer
        pace.end(trainer.ready)
        known = self.newest[-1].loss if self.newest else None
        epoch, epochs = position.epoch + 1, self._options.epochs
        self._board.step(position.step, self._last_step or 0, epoch, epochs, known, pace.newest, pace.data)
        lr = float(trainer.optimizer.param_groups[0]["lr"])
        record = StepRecord(step=position.step, epoch=epoch, loss=math.nan, lr=lr, samples_per_s=math.nan)
        self._steps.append((record, loss, trainer.weight, self._noted))
        self._noted, self._samples = {}, self._samples + samples
        self.show.step(epoch, position.step, known)

    def write_if_due(self) -> None:
        """Write the records if there are as many as ``--log-every`` says. Collective."""
        if len(self._steps) == self._options.log_every:
            self.write(self.gather())
            self._board.complete()

    def write_rest(self) -> None:
        """Write the records of all steps so far: those of a checkpoint must cover all steps up to it. Collective."""
        if self._steps:
            self.write(self.gather())

    def gather(self) -> list[StepRecord]:
        """Return the records of the steps since the last call, with the data-parallel ranks' weighted mean losses. Collective."""
        if not self._steps:
            return []
        (records, of_steps, weights, noted), run, pace = zip(*self._steps, strict=True), self._run, self._pace
        losses, count = torch.stack(of_steps).double(), len(records)
        rest = torch.tensor([*weights, *pace.share()], dtype=losses.dtype, device=losses.device)
        both = torch.cat([losses * rest[:count], rest])
        dist.all_reduce(both, group=run.group())
        *sums, seconds_of_all, ranks = both.tolist()
        # The names of the numbers noted in each step. All ranks reduce the numbers in this order.
        names = "; ".join(f"step +{place}: {', '.join(one)}" for place, one in enumerate(noted) if one)
        (smallest, largest), (_, slowest) = bounds([number_of(names), pace.longest()], run.group())
        if smallest != largest:
            _refuse_names(names, run)
        pace.take(seconds_of_all, ranks, slowest)
        means: Iterator[float] = iter(())
        if values := [value.double() for one in noted for value in one.values()]:
            noted_sums = torch.stack(values)
            dist.all_reduce(noted_sums, group=run.group())
            means = iter((noted_sums / run.data_size).tolist())
        seconds = time.perf_counter() - self._started
        speed = speeds(self._samples / seconds, self._trainer.task, run.size, run.device)
        for record, total, weight, names_here in zip(records, sums[:count], sums[count:], noted, strict=True):
            record.loss, record.more = total / weight if weight else 0.0, {name: next(means) for name in names_here}
            vars(record).update(speed)
        if run.is_main:
            vars(records[-1]).update(self._usage.read())
        self._seconds, self._all_samples = self._seconds + seconds, self._all_samples + self._samples
        self._steps, self._samples = [], 0
        self.start()
        return list(records)

    def write(self, records: list[StepRecord]) -> None:
        """Write records. Print a line about a slow rank, and the first time that the loss is not finite. Collective.

        Raises:
            RunnerError: the records cannot be written, or losses and weights are not finite.
        """
        self.of_epoch.add(records)
        if self._file is not None:
            self._file.write(records)
        for logger in self._loggers:
            if line := logger.log(records):
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

    def overall(self) -> float:
        """Return the samples per second of all ranks over the whole training, without evaluation."""
        return self._all_samples / self._seconds if self._seconds else 0.0


def logged_number(name: str, value: float | Tensor, device: torch.device) -> Tensor:
    """Return a logged value as a scalar tensor on the device.

    Raises:
        UsageError: it is no real number.
    """
    try:
        number = torch.as_tensor(value, device=device).detach()
        if number.numel() == 1 and not number.is_complex():
            return number.reshape(())
    except (TypeError, ValueError, RuntimeError):
        pass  # such as a text
    raise UsageError(
        f"run.log({name}=…): the value is {form_of(value)}",
        fix="log real numbers: floats, or tensors of one element, as of .mean()",
    )


@raised_on_all_ranks()
def _refuse_names(names: str, run: Run) -> NoReturn:
    """Refuse that the ranks have noted numbers of different names. Collective."""
    everyone: list[Any] = [None] * run.data_size
    dist.all_gather_object(everyone, names, group=run.group())
    other = next(rank for rank, text in enumerate(everyone) if text != everyone[0])
    raise UsageError(
        f"the ranks log different numbers: {everyone[0] or 'none'} on rank 0, {everyone[other] or 'none'} on data-parallel rank {other}",
        fix="call run.log() with the same names in the same steps on all ranks; rank 0 writes their means",
    )
