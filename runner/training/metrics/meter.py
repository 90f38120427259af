"""The losses of steps, kept on the device until they are gathered from the ranks and become records."""

from __future__ import annotations

import time
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from runner.parallel.task import Task
from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.metrics.sinks import StepRecord
from runner.training.metrics.speed import speeds
from runner.training.metrics.usage import UsageReader
from runner.training.run import Run


class Summed(Protocol):
    """Something that needs the ranks' sums of some numbers, and takes them from the metrics' collective."""

    def share(self) -> list[float]:
        """This rank's numbers: as many on every rank."""

    def take_sums(self, sums: list[float]) -> None:
        """The sums over the data-parallel ranks."""


class Meter:
    """Collects losses on the device, and turns them into records by one collective for many steps."""

    def __init__(self, run: Run, task: Task, global_batch: int) -> None:
        self.run, self.task = run, task
        self.global_batch = global_batch
        self._losses: list[Tensor] = []
        self._places: list[tuple[int, int, float]] = []
        self._started = time.perf_counter()
        self._seconds = 0.0
        self._steps = 0
        self._usage = UsageReader(run.device)

    def __len__(self) -> int:
        return len(self._losses)

    def start(self) -> None:
        """Start the clock: the time before was not training."""
        self._started = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leave out a time that was not training."""
        self._started += seconds

    def add(self, loss: Tensor, position: Position, lr: float) -> None:
        self._losses.append(loss)
        self._places.append((position.step, position.epoch + 1, lr))

    def records(self, *others: Summed) -> list[StepRecord]:
        """The records of the steps since the last call, losses averaged over the data-parallel ranks. Collective.

        Args:
            others: whose numbers are summed in the same collective.
        """
        if not self._losses:
            return []
        shares = [one.share() for one in others]
        losses = torch.stack(self._losses).double()
        numbers = [number for share in shares for number in share]
        both = torch.cat([losses, torch.tensor(numbers, dtype=losses.dtype, device=losses.device)])
        dist.all_reduce(both, group=self.run.group())
        sums = iter(both.tolist())
        means = [next(sums) / self.run.data_size for _ in self._losses]
        for one, share in zip(others, shares, strict=True):
            one.take_sums([next(sums) for _ in share])
        seconds = time.perf_counter() - self._started
        self._seconds += seconds
        self._steps += len(means)
        speed = speeds(len(means) * self.global_batch / seconds, self.task, self.run.size, self.run.device)
        records = [
            StepRecord(step=step, epoch=epoch, loss=loss, lr=lr, **speed)
            for (step, epoch, lr), loss in zip(self._places, means, strict=True)
        ]
        if self.run.is_main:
            vars(records[-1]).update(vars(self._usage.read()))
        self._losses, self._places = [], []
        self._started = time.perf_counter()
        return records

    def overall(self) -> float:
        """Samples per second of all ranks over the whole training, without evaluation."""
        return self._steps * self.global_batch / self._seconds if self._seconds else 0.0
