"""A measured run: how long the steps of a program or a workload take. It ends itself after enough of them.

A script need not know of it: see optimizer_steps.py. ``scale`` asks for it by a file in a folder, in which each rank leaves what it has seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from runner.job import Job
from runner.measuring.optimizer_steps import OptimizerSteps
from runner.torchrun.import_hooks import when_imported
from runner.training.settings import Every, StepSettings
from runner.versions.torch_private import loader_iterator

_REQUEST = "request.json"
# The fields of a workload's settings that say how long it trains, of which it has some (iterations: workloads.resnet).
_LENGTHS = ("epochs", "max_steps", "iterations")

_of_settings = [0]  # samples of all ranks per step, as a workload's settings say


class MeasuredError(BaseException):
    """The run has been measured: all ranks end at this step. No Exception, so that a program's handlers let it pass."""


@dataclass(frozen=True, kw_only=True)
class StepsWanted:
    """The number of steps to measure, and of warm-up steps before them."""

    warmup: int
    steps: int

    def write(self, folder: Path) -> None:
        (folder / _REQUEST).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> StepsWanted:
        return cls(**json.loads((folder / _REQUEST).read_text(encoding="utf-8")))


@dataclass(kw_only=True)
class StepsSeen:
    """The measurements of a rank.

    Attributes:
        asked: how many steps were to be timed.
        seconds: of each timed step.
        waiting: of each timed step, the seconds for which a loader was waited for.
        memory: the most bytes that it has had: of its GPU by torch's allocator, else of its host.
        repeats: how often a loader began again in the timed steps.
        batch: samples of all ranks in most of the steps; 0: not known, as of a script.
        is_joined: whether it had a process group, or Horovod: else it trained alone.
        facts: of the job: hosts, cores of a host, device, versions, date.
    """

    rank: int
    size: int
    asked: int
    seconds: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    memory: int = 0
    repeats: int = 0
    batch: int = 0
    is_joined: bool = True
    facts: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        path = folder / f"rank-{self.rank:05}.json"
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(path)


def read_measured(folder: Path) -> list[StepsSeen]:
    """Return what the ranks of a run have left, in their order."""
    return [StepsSeen(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("rank-*.json"))]


def to_measure(settings: StepSettings, folder: Path, data_size: int) -> StepSettings:
    """Return a workload's settings for a measured run: long enough, and what it writes is in the run's folder.

    Args:
        data_size: how many ranks divide the data.
    """
    request = StepsWanted.read(folder)
    _of_settings[0] = settings.global_batch_size or settings.batch_size * data_size
    wanted: dict[str, Any] = dict.fromkeys(_LENGTHS, request.warmup + request.steps)
    wanted |= {"checkpoint_dir": folder / "training", "save_every": Every(0), "metrics": None, "logger": ()}
    wanted |= {"profile": None, "requeue": False}
    known = {one.name for one in fields(settings)}
    return replace(settings, **{name: value for name, value in wanted.items() if name in known})


@contextlib.contextmanager
def measuring(job: Job, folder: Path) -> Iterator[None]:
    """Measure what the block trains, and end it. What a training that ends earlier has done counts, too."""
    stopwatch = _Stopwatch(job, folder)
    when_imported("torch", OptimizerSteps(stopwatch.request.warmup, stopwatch.begin, stopwatch.after_step).watch)
    when_imported("torch.utils.data.dataloader", stopwatch.watch_loaders)
    when_imported("runner.training.step_metrics", stopwatch.watch_samples)
    try:
        yield
    except MeasuredError:
        job.board.enter("done")  # it does not leave early
    stopwatch.finish()


class _Stopwatch:
    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder, self.request = job, folder, StepsWanted.read(folder)
        self._found = StepsSeen(rank=job.rank, size=job.size, asked=self.request.steps)
        self._clock: _StepTimes | None = None  # once the warm-up is over
        self._waited, self._waited_before = 0.0, 0.0
        self._batches: Counter[int] = Counter()  # their samples
        self._is_written = False

    def watch_loaders(self) -> None:
        """See how long its iterators are waited for. All of torch's loaders derive theirs of one class."""
        kind: Any = loader_iterator()
        kind.__next__ = self._timed(kind.__next__)

    def watch_samples(self) -> None:
        """See how many samples of all ranks a workload's steps have."""
        from runner.training.step_metrics import StepMetrics

        kind: Any = StepMetrics
        add = StepMetrics.add

        def counted(metrics: StepMetrics, loss: Any, samples: int) -> None:
            self._batches[samples] += 1
            add(metrics, loss, samples)

        kind.add = counted

    def _timed(self, take: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_batch(iterator: Any) -> Any:
            start = time.perf_counter()
            try:
                return take(iterator)
            except StopIteration:
                self._found.repeats += self._clock is not None
                raise
            finally:
                self._waited += time.perf_counter() - start

        return next_batch

    def begin(self) -> None:
        """The warm-up is over; all begins anew where it was that of a smaller optimizer before."""
        self._found.repeats, self._found.waiting = 0, []
        self._found.is_joined = _is_joined()  # now: a program that ends early has left its group by its end
        self._clock = _StepTimes(self._job.placement.torch_device)
        self._waited_before = self._waited

    def after_step(self) -> None:
        if self._is_written:
            return
        assert self._clock is not None
        self._clock.mark()
        self._found.waiting.append(self._waited - self._waited_before)
        self._waited_before = self._waited
        if len(self._found.waiting) == self.request.steps:
            self.finish()
            raise MeasuredError

    def finish(self) -> None:
        """Write what was seen, once."""
        if self._is_written:
            return
        self._is_written = True
        if self._clock is not None:
            self._found.seconds, self._found.memory = self._clock.seconds(), self._clock.memory()
        self._found.batch = max(self._batches, key=lambda samples: self._batches[samples], default=_of_settings[0])
        self._found.facts = _facts_of(self._job) if self._job.rank == 0 else {}
        self._found.write(self._folder)


class _StepTimes:
    """Times of steps; on a GPU by the device's own events, so that no step waits for the device."""

    def __init__(self, device: str) -> None:
        self._gpu: Any = None  # torch.cuda or torch.xpu
        if device != "cpu":
            import torch

            self._gpu = getattr(torch, device.partition(":")[0])
            self._gpu.synchronize()
            self._gpu.reset_peak_memory_stats()
        self._marks = [self._now()]

    def _now(self) -> Any:
        if self._gpu is None:
            return time.perf_counter()
        event = self._gpu.Event(enable_timing=True)
        event.record()
        return event

    def mark(self) -> None:
        self._marks.append(self._now())

    def seconds(self) -> list[float]:
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._gpu is None:
            return [later - earlier for earlier, later in pairs]
        self._marks[-1].synchronize()
        return [1e-3 * earlier.elapsed_time(later) for earlier, later in pairs]

    def memory(self) -> int:
        if self._gpu is None:
            return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(self._gpu.max_memory_allocated())


def _is_joined() -> bool:
    """Whether this rank exchanges with others."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return True
    horovod = sys.modules.get("horovod.torch")
    return bool(horovod and horovod.is_initialized())


def _facts_of(job: Job) -> dict[str, Any]:
    """Return the versions, device and launcher of the run."""
    record, device = job.topology.records[0], job.placement.device
    if device != "cpu":
        import torch

        device = str(getattr(torch, device).get_device_name(job.placement.torch_device))
    return {
        "hosts": len(job.topology.hosts),
        "cores": os.cpu_count() or 1,  # of a host
        "device": device,
        "versions": ", ".join(f"{name} {getattr(record, name)}" for name in ("runner", "python", "torch")),
        "when": time.strftime("%Y-%m-%d"),
    }
