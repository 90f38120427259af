"""A measured run: how long the steps of a program or a workload take, and what for. It ends itself after enough of them.

A script need not know of it: see optimizer_steps.py. No profiler runs beside the clock: what a step's time goes into is taken from a few steps more, after the timed ones.
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
from typing import TYPE_CHECKING, Any

from runner.hardware.meters import Meters
from runner.job import Job
from runner.measuring.facts import write_facts
from runner.measuring.optimizer_steps import OptimizerSteps
from runner.torchrun.import_hooks import when_imported
from runner.training.settings import Every, StepSettings
from runner.versions.torch_private import loader_iterator, take_key

if TYPE_CHECKING:
    import torch

_REQUEST = "request.json"
# The fields of a workload's settings that say how long it trains, of which it has some (iterations: workloads.resnet).
_LENGTHS = ("epochs", "max_steps", "iterations")


class MeasuredError(BaseException):
    """The run has been measured: all ranks end at this step. No Exception, so that a program's handlers let it pass."""


@dataclass(frozen=True, kw_only=True)
class StepsWanted:
    """What is measured.

    Attributes:
        warmup: steps before the timed ones.
        steps: that are timed.
        profiled: steps after them whose parts are taken from a trace; 0: none.
        fixed_data: each loader gives its first batch again and again, so that no step waits for data.
    """

    warmup: int = 5
    steps: int = 100
    profiled: int = 0
    fixed_data: bool = False

    def write(self, folder: Path) -> None:
        (folder / _REQUEST).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> StepsWanted:
        return cls(**json.loads((folder / _REQUEST).read_text(encoding="utf-8")))


@dataclass(kw_only=True)
class StepsSeen:
    """What a rank has seen.

    Attributes:
        asked: how many steps were to be timed.
        seconds: of each timed step.
        waiting: of each timed step, the seconds for which a loader was waited for.
        compute, exposed, idle: seconds per step, of the steps in the trace (see profile_shares.py); None: there is no trace.
        memory: the most bytes that it has had: of its GPU by torch's allocator, else of its host.
        busy: share of the timed steps' time in which its GPU, or on CPUs its threads, computed; None: not known.
        joules: of its GPU, and of its host's processors for the first rank on it; None: they do not tell.
        clock: frequency of its device after the timed steps over that before them; None: not known.
        repeats: how often a loader began again in the timed steps.
        batch: samples of all ranks in most of the steps; 0: not known, as of a script.
        is_joined: whether it had a process group, or Horovod: else it trained alone.
    """

    rank: int
    host: str
    local_rank: int
    device: str
    asked: int = 0
    seconds: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    compute: float | None = None
    exposed: float | None = None
    idle: float | None = None
    memory: int = 0
    busy: float | None = None
    joules: float | None = None
    clock: float | None = None
    repeats: int = 0
    batch: int = 0
    is_joined: bool = True

    def write(self, folder: Path) -> None:
        path = folder / f"rank-{self.rank:05}.json"
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(path)


def read_measured(folder: Path) -> list[StepsSeen]:
    """What the ranks of a run have left, in their order."""
    return [StepsSeen(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("rank-*.json"))]


def to_measure(settings: StepSettings, folder: Path) -> StepSettings:
    """A workload's settings for a measured run: long enough, and what it writes is in the run's folder.

    A DataLoader's own batch size counts: which batch was trained on is in what the ranks have seen.
    """
    request = StepsWanted.read(folder)
    steps = request.warmup + request.steps + request.profiled
    wanted: dict[str, Any] = dict.fromkeys(_LENGTHS, steps)
    wanted |= {"checkpoint_dir": folder / "training", "save_every": Every(0), "metrics": None, "logger": ()}
    batches = ("batch_size", "global_batch_size")
    given = {name: value for name, value in settings.given.items() if name not in batches}
    wanted |= {"profile": None, "requeue": False, "given": given}
    known = {one.name for one in fields(settings)}
    return replace(settings, **{name: value for name, value in wanted.items() if name in known})


@contextlib.contextmanager
def measuring(job: Job, folder: Path) -> Iterator[None]:
    """Measure what the block trains, and end it. What a training that ends earlier has done counts, too."""
    recorder = _Stopwatch(job, folder)
    when_imported("torch", OptimizerSteps(recorder.request.warmup, recorder.begin, recorder.after_step).watch)
    when_imported("torch.utils.data.dataloader", recorder.watch_loaders)
    when_imported("runner.training.metrics.meter", recorder.watch_samples)
    try:
        yield
    except MeasuredError:
        job.board.enter("done")  # it does not leave early
    recorder.finish()


class _Stopwatch:
    def __init__(self, job: Job, folder: Path) -> None:
        self._job, self._folder, self.request = job, folder, StepsWanted.read(folder)
        self._found = StepsSeen(
            rank=job.rank,
            asked=self.request.steps,
            host=job.context.host,
            local_rank=job.local_rank,
            device=job.placement.torch_device,
        )
        self._meters = Meters(job.placement.torch_device, is_first_on_host=job.local_rank == 0)
        self._threads = job.placement.threads
        self._steps = 0  # after the warm-up
        self._clock: _StepTimes | None = None
        self._waited, self._waited_before = 0.0, 0.0
        self._batches: Counter[int] = Counter()  # their samples
        self._span = contextlib.ExitStack()  # of a step in the trace
        self._profiler: torch.profiler.profile | None = None
        self._is_written = False

    def watch_loaders(self) -> None:
        """See how long its iterators are waited for. All of torch's loaders derive theirs of one class."""
        kind: Any = loader_iterator()
        kind.__next__ = self._timed(kind.__next__)

    def watch_samples(self) -> None:
        """See how many samples of all ranks a workload's steps have."""
        from runner.training.metrics.meter import Meter

        kind: Any = Meter
        count = Meter.count

        def counted(meter: Meter, samples: int) -> None:
            self._batches[samples] += 1
            count(meter, samples)

        kind.count = counted

    def _timed(self, take: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def next_batch(iterator: Any) -> Any:
            start = time.perf_counter()
            try:
                return self._fixed(iterator, take) if self.request.fixed_data else take(iterator)
            except StopIteration:
                self._found.repeats += self._clock is not None
                raise
            finally:
                self._waited += time.perf_counter() - start

        return next_batch

    def _fixed(self, iterator: Any, take: Callable[[Any], Any]) -> Any:
        """The first batch, as often as there are batches."""
        given = getattr(iterator, "runner_given", None)
        if given is None:
            given = iterator.runner_given = [take(iterator), 0]
        else:
            take_key(iterator)  # samplers may count their batches
        given[1] += 1
        with contextlib.suppress(TypeError):  # of a stream, which has no length
            if given[1] > len(iterator):
                raise StopIteration
        return given[0]

    def after_step(self) -> None:
        if self._is_written:
            return
        self._steps += 1
        if self._steps <= self.request.steps:
            self._mark()
        if self._steps == self.request.steps:
            self._end_timing()
            if self.request.profiled:
                self._begin_trace()
        elif self._profiler is not None:
            self._mark_in_trace()
        if self._steps >= self.request.steps + self.request.profiled:
            self.finish()
            raise MeasuredError

    def begin(self) -> None:
        """The warm-up is over; all begins anew where it was that of a smaller optimizer before."""
        if self._profiler is not None:
            self._span.close()
            self._profiler.stop()
            self._profiler = None
        self._steps = self._found.repeats = 0
        self._found.seconds, self._found.waiting = [], []
        self._found.is_joined = _is_joined()  # now: a program that ends early has left its group by its end
        self._clock = _StepTimes(self._found.device)
        self._meters.begin()
        self._used = _processor_seconds()
        self._waited_before = self._waited

    def _mark(self) -> None:
        assert self._clock is not None
        self._clock.mark()
        self._found.waiting.append(self._waited - self._waited_before)
        self._waited_before = self._waited

    def _end_timing(self) -> None:
        if self._clock is None or self._found.seconds:
            return
        self._found.seconds = self._clock.seconds()
        passed = sum(self._found.seconds)
        is_whole = len(self._found.seconds) == self.request.steps  # else it is later than their end
        self._found.joules = self._meters.joules() if is_whole else None
        self._found.busy = self._meters.busy() if is_whole else None
        if is_whole and self._found.busy is None and self._found.device == "cpu" and passed:
            self._found.busy = min(1.0, (_processor_seconds() - self._used) / passed / self._threads)
        self._found.clock = self._meters.clock_kept()
        self._found.memory = self._clock.memory()

    def _begin_trace(self) -> None:
        import torch

        from runner.base.environment import set_missing
        from runner.versions.torch_api import ALL_THREADS
        from runner.versions.torch_private import profiler_settings

        set_missing({"KINETO_LOG_LEVEL": "6"})
        kinds = torch.profiler.ProfilerActivity
        activities = [
            kinds.CPU,
            *({"cuda": [kinds.CUDA], "xpu": [kinds.XPU]}.get(self._found.device.partition(":")[0], [])),
        ]
        self._profiler = torch.profiler.profile(
            activities=activities, experimental_config=profiler_settings(**ALL_THREADS)
        )
        self._profiler.start()
        self._mark_in_trace()

    def _mark_in_trace(self) -> None:
        import torch

        from runner.training.metrics.profile_shares import STEP

        self._span.close()
        self._span.enter_context(torch.profiler.record_function(f"{STEP}{self._steps}"))

    def finish(self) -> None:
        """Write what was seen, once."""
        if self._is_written:
            return
        self._is_written = True
        self._end_timing()
        if self._profiler is not None:
            self._read_trace(self._profiler)
        if self._job.rank == 0:
            write_facts(self._job, self._folder)
        self._found.batch = max(self._batches, key=lambda samples: self._batches[samples], default=0)
        self._found.write(self._folder)

    def _read_trace(self, profiler: torch.profiler.profile) -> None:
        from runner.training.metrics.profile_shares import read_shares

        self._span.close()
        profiler.stop()
        path = self._folder / f"trace-{self._found.rank:05}.json.gz"
        profiler.export_chrome_trace(str(path))
        found = read_shares(path, on_gpu=self._found.device != "cpu")
        path.unlink()
        per_step = 1e-6 / self.request.profiled
        self._found.compute, self._found.exposed, self._found.idle = (
            per_step * part for part in (found.compute, found.exposed, found.idle)
        )


class _StepTimes:
    """By the device's own events on a GPU, which need not be waited for."""

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


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system
