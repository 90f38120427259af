"""The losses of steps, kept on the device until they are gathered from the ranks and become records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from runner.backends.comparing import bounds, number_of
from runner.backends.gpu import is_gpu
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.parallel.batch_forms import form_of
from runner.parallel.task import Task
from runner.training.checkpoint.checkpoint_folder import Position
from runner.training.metrics.sinks import StepRecord
from runner.training.metrics.speed import speeds
from runner.training.metrics.stragglers import Pace
from runner.training.run import Run

_USAGE_SECONDS = 1.0  # the least time from one reading of the usage to the next


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


class UsageReader:
    """Reads this process's use of its host and a device, at most once per second, because a reading takes 0.1 ms."""

    def __init__(self, device: torch.device) -> None:
        self._process, self._device, self._read_at = psutil.Process(), device, time.monotonic()
        self._process.cpu_percent()  # the next call gives what was used since this one

    def read(self) -> dict[str, float]:
        """Return what is in use now, by names of ``StepRecord``; nothing within a second of the last reading."""
        now = time.monotonic()
        if now - self._read_at < _USAGE_SECONDS:
            return {}
        self._read_at = now
        found: dict[str, float] = {"cpu": self._process.cpu_percent(), "memory": self._process.memory_info().rss}
        if is_gpu(self._device):
            free, whole = torch.accelerator.get_memory_info(self._device)
            found["gpu_memory"] = whole - free
            with contextlib.suppress(Exception):  # no NVML, one of another driver, or a GPU of Intel's
                found["gpu"] = float(torch.cuda.utilization(self._device))
        return found


class Meter:
    """Collects losses on the device, and turns those of many steps into records together."""

    def __init__(self, run: Run, task: Task) -> None:
        self.run, self.task = run, task
        self._losses: list[Tensor] = []
        self._weights: list[float] = []
        self._places: list[tuple[int, int, float]] = []
        self._started = time.perf_counter()
        self._seconds = 0.0
        self._samples = 0  # since the last records
        self._all_samples = 0
        self._usage = UsageReader(run.device)
        self._noted: dict[str, Tensor] = {}  # of this step, by name
        self._more: list[dict[str, Tensor]] = []  # of the steps before

    def __len__(self) -> int:
        return len(self._losses)

    def start(self) -> None:
        """Start the clock: the time before was not training."""
        self._started = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Leave out seconds that were not training."""
        self._started += seconds

    def count(self, samples: int) -> None:
        """Count the samples that all ranks have used in this step."""
        self._samples += samples

    def note(self, values: Mapping[str, float | Tensor]) -> None:
        """Add numbers to this step's record; they replace others of the same names."""
        self._noted |= {name: logged_number(name, value, self.run.device) for name, value in values.items()}

    def add(self, loss: Tensor, position: Position, lr: float, weight: float = 1.0) -> None:
        """Add a step that is done, and counted in the position. ``weight``: of this rank's loss in the mean over the ranks."""
        self._losses.append(loss)
        self._weights.append(weight)
        self._more.append(self._noted)
        self._noted = {}
        self._places.append((position.step, position.epoch + 1, lr))

    def records(self, pace: Pace) -> list[StepRecord]:
        """Return the records of the steps since the last call, with the data-parallel ranks' weighted mean losses. Collective.

        Args:
            pace: takes the sums of the ranks' own times from the same collective.
        """
        if not self._losses:
            return []
        losses, count = torch.stack(self._losses).double(), len(self._losses)
        rest = torch.tensor([*self._weights, *pace.share()], dtype=losses.dtype, device=losses.device)
        both = torch.cat([losses * rest[:count], rest])
        dist.all_reduce(both, group=self.run.group())
        *sums, seconds_of_all, ranks = both.tolist()
        means = [total / weight if weight else 0.0 for total, weight in zip(sums[:count], sums[count:], strict=True)]
        # The names of the numbers noted in each step. All ranks reduce the numbers in this order.
        names = "; ".join(f"step +{place}: {', '.join(one)}" for place, one in enumerate(self._more) if one)
        (smallest, largest), (_, slowest) = bounds([number_of(names), pace.longest()], self.run.group())
        if smallest != largest:
            _refuse_names(names, self.run)
        pace.take(seconds_of_all, ranks, slowest)
        more = self._means_of_more()
        seconds = time.perf_counter() - self._started
        self._seconds += seconds
        self._all_samples += self._samples
        speed = speeds(self._samples / seconds, self.task, self.run.size, self.run.device)
        records = [
            StepRecord(step=step, epoch=epoch, loss=loss, lr=lr, more=more_here, **speed)
            for (step, epoch, lr), loss, more_here in zip(self._places, means, more, strict=True)
        ]
        if self.run.is_main:
            vars(records[-1]).update(self._usage.read())
        self._losses, self._weights, self._places, self._more, self._samples = [], [], [], [], 0
        self._started = time.perf_counter()
        return records

    def _means_of_more(self) -> list[dict[str, float]]:
        """Return the noted numbers of each step, averaged over the data-parallel ranks. Collective if there are any."""
        values = [value.double() for one in self._more for value in one.values()]
        if not values:
            return [{} for _ in self._more]
        sums = torch.stack(values)
        dist.all_reduce(sums, group=self.run.group())
        means = iter((sums / self.run.data_size).tolist())
        return [{name: next(means) for name in one} for one in self._more]

    def overall(self) -> float:
        """Return the samples per second of all ranks over the whole training, without evaluation."""
        return self._all_samples / self._seconds if self._seconds else 0.0


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
