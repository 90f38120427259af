"""``--profile``: traces of chosen steps by torch.profiler, one file per rank, and a table of what their time went into.

The time of a step is computing, exposed communication and idle. On a GPU, compute is its kernels and copies, and communication is NCCL's
kernels, which also run while they wait for another rank, and the collectives of other backends. On a CPU, compute is torch's operators
in the thread that trains, and communication is the collectives that backends record, and the calls of collectives. Exposed is
communication while nothing is computed. Idle is the rest: on a GPU the wait for the CPU; on a CPU Python between the operators, the wait
for data, and what leaves no record, such as Horovod's exchange.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import Backend

from runner.backends.gpu import is_gpu
from runner.backends.timing import synchronize
from runner.base.environment import set_missing
from runner.base.errors import UsageError, raised_on_all_ranks
from runner.training.checkpoint.file_errors import writing
from runner.training.metrics.output import kept_names
from runner.training.places import once_per_file_system
from runner.training.run import Run
from runner.training.settings import Settings
from runner.versions.torch_api import ALL_THREADS
from runner.versions.torch_private import profiler_settings

Interval = tuple[float, float]  # from, to

STEP = "ProfilerStep#"  # the name that trace viewers know

# Names of events. Autograd's nodes are no operators: their hooks may wait.
_OPERATOR = r"(?!autograd::|torch::autograd::)[\w.]+::\w+|## Call CompiledFxGraph"
_CALL = r"(c10d|_c10d_functional\w*)::"  # of a collective, in the thread that asks for it or waits for it
# And their categories.
_OPERATORS, _ANNOTATIONS = ("cpu_op",), ("user_annotation",)
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Shares(NamedTuple):
    """Parts of the steps' time, which add up to all of it: something is computed, something is only communicated, or neither."""

    compute: float
    exposed: float
    idle: float


def shares(
    steps: Iterable[Interval],
    compute: Iterable[Interval],
    communication: Iterable[Interval],
    calls: Iterable[Interval] = (),
) -> Shares:
    """Divide the time of steps. Intervals of one kind may overlap; time outside of the steps does not count.

    Args:
        calls: communication by the one thread that would compute. A computation around it is an operator that waits.
    """
    kinds = (steps, calls, compute, communication)
    ends = sorted(
        (moment, kind, change)
        for kind, intervals in enumerate(kinds)
        for interval in intervals
        for moment, change in zip(interval, (1, -1), strict=True)
    )
    open_now = [0] * len(kinds)
    found = Shares(0.0, 0.0, 0.0)._asdict()
    before = 0.0
    for moment, kind, change in ends:
        is_step, is_call, is_compute, is_communication = open_now
        if is_step:
            name = "exposed" if is_call else "compute" if is_compute else "exposed" if is_communication else "idle"
            found[name] += moment - before
        open_now[kind] += change
        before = moment
    return Shares(**found)


def read_shares(path: Path, *, on_gpu: bool) -> Shares:
    """Return the shares of torch.profiler's Chrome trace, compressed by gzip, in µs."""
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    trains = {event["tid"] for event in events if event["name"].startswith(STEP)}
    by_host = "|".join(name for name in Backend.backend_list if name != "nccl")  # NCCL's kernels tell

    def intervals(categories: tuple[str, ...], name: str, threads: set[int] | None = None) -> list[Interval]:
        """Return when events ran, of these categories, with names that begin so, in these threads (None: in any)."""
        return [
            (event["ts"], event["ts"] + event["dur"])
            for event in events
            if event.get("cat") in categories
            and re.match(name, event["name"])
            and (threads is None or event["tid"] in threads)
        ]

    steps = intervals(_ANNOTATIONS, STEP)
    collectives = intervals(_ANNOTATIONS, f"({by_host}):[^:]")  # gloo:all_reduce
    if on_gpu:
        return shares(steps, intervals(_ON_DEVICE, "(?!nccl)"), [*intervals(_ON_DEVICE, "nccl"), *collectives])
    calls = intervals(_OPERATORS, _CALL, trains)
    return shares(steps, intervals(_OPERATORS, _OPERATOR, trains), collectives, calls)


@raised_on_all_ranks()
def profiled(
    run: Run, options: Settings, steps: int, leave_out: Callable[[float], None], is_last_of_epoch: Callable[[], bool]
) -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes the context of each step, to record the chosen ones.

    Args:
        steps: the number of steps that this run makes.
        leave_out: called with seconds that were not training.
        is_last_of_epoch: returns whether the step that has ended is its epoch's last.

    Raises:
        UsageError: a step is chosen that this run does not make.
    """
    if options.profile is None:
        return nullcontext
    chosen = range(options.profile.first, options.profile.last + 1)
    if chosen[-1] > steps:
        raise UsageError(
            f"--profile: this run makes {steps} steps, and step {chosen[-1]} is asked for", fix="name some of those"
        )
    return _Recorder(run, options.checkpoint_dir, chosen, leave_out, is_last_of_epoch).step


@dataclass
class _Recorder:
    _run: Run
    _folder: Path
    _chosen: range
    _leave_out: Callable[[float], None]
    _is_last_of_epoch: Callable[[], bool]
    _number: int = 0  # of the step, of this run

    def __post_init__(self) -> None:
        # Of all threads, because a backend's work may begin in one thread and end in another.
        config = profiler_settings(**ALL_THREADS)
        kinds = torch.profiler.ProfilerActivity
        of_gpu = {"cuda": [kinds.CUDA], "xpu": [kinds.XPU]}.get(self._run.device.type, [])
        self._profiler = torch.profiler.profile(activities=[kinds.CPU, *of_gpu], experimental_config=config)

    @contextmanager
    def step(self) -> Iterator[None]:
        self._number += 1
        if self._number not in self._chosen:
            yield
            return
        if self._number == self._chosen[0]:
            self._untimed(self._start)
        is_last = self._number == self._chosen[-1]
        with torch.profiler.record_function(f"{STEP}{self._number}"):
            yield
            if is_last or self._is_last_of_epoch():
                synchronize(self._run.device)  # what a GPU still has to do is the step's
        if is_last:
            self._untimed(self._finish)

    def _untimed(self, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        work()
        self._leave_out(time.perf_counter() - start)

    def _start(self) -> None:
        set_missing({"KINETO_LOG_LEVEL": "6"})  # else it reports an error on every rank without a GPU
        synchronize(self._run.device)
        self._profiler.start()
        dist.barrier()  # a rank takes longer to start than another

    def _finish(self) -> None:
        """Write the traces, and print the table. Collective.

        Raises:
            RunnerError: this rank cannot write its trace.
        """
        run, folder = self._run, self._folder / "profile"
        self._profiler.stop()
        once_per_file_system(run, self._folder, "--checkpoint-dir", lambda: _keep_earlier(folder))
        path = folder / f"rank-{run.rank:05}.json.gz"
        with writing(path):
            folder.mkdir(exist_ok=True)
            self._profiler.export_chrome_trace(str(path))
        by_rank = torch.zeros(run.size, 3, dtype=torch.float64, device=run.device)
        by_rank[run.rank] = torch.tensor(read_shares(path, on_gpu=is_gpu(run.device)))
        dist.all_reduce(by_rank)
        ranks = [Shares(*row) for row in (by_rank / 1e3 / len(self._chosen)).tolist()]
        run.print(_table(ranks, self._chosen))
        if run.is_main:
            rows = [{"rank": rank, "step": sum(one), **one._asdict()} for rank, one in enumerate(ranks)]
            content = {"format": 1, "steps": [self._chosen[0], self._chosen[-1]], "ranks": rows}
            with writing(folder / "shares.json"):
                (folder / "shares.json").write_text(json.dumps(content, indent=1) + "\n")
        if not ALL_THREADS and not is_gpu(run.device):
            run.print("torch before 2.7 records the thread that trains only: what gloo does in its own counts as idle")
        run.print(f"traces      {folder}")


def _keep_earlier(folder: Path) -> None:
    """Keep an earlier run's traces under another name."""
    if folder.exists():
        folder.rename(*kept_names(folder))


def _table(ranks: list[Shares], chosen: range) -> str:
    """Return a line for each rank. Shares are milliseconds per step."""
    steps = f"step {chosen[0]}" if len(chosen) == 1 else f"steps {chosen[0]} to {chosen[-1]}"
    lines = [f"{steps}, ms per step:", "  rank      step            compute      exposed comm.               idle"]
    for rank, found in enumerate(ranks):
        columns = "".join(f"{one:10.2f} {one / sum(found):6.1%} " for one in found)
        lines.append(f"{rank:6}{sum(found):10.2f} {columns}".rstrip())
    return "\n".join(lines)
