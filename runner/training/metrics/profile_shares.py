"""The shares of a trace's steps: computing, exposed communication, idle.

On a GPU, compute is its kernels and copies, and communication is NCCL's kernels, which also run while they wait for another
rank, and the collectives of other backends. On a CPU, compute is torch's operators in the thread that trains, and
communication is the collectives that backends record, and the calls of collectives. Exposed is communication while nothing is
computed. Idle is the rest: on a GPU the wait for the CPU; on a CPU Python between the operators, the wait for data, and what
leaves no record, such as Horovod's exchange.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from torch.distributed import Backend

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
        (time, kind, change)
        for kind, intervals in enumerate(kinds)
        for interval in intervals
        for time, change in zip(interval, (1, -1), strict=True)
    )
    open_now = [0] * len(kinds)
    found = Shares(0.0, 0.0, 0.0)._asdict()
    before = 0.0
    for time, kind, change in ends:
        is_step, is_call, is_compute, is_communication = open_now
        if is_step:
            name = "exposed" if is_call else "compute" if is_compute else "exposed" if is_communication else "idle"
            found[name] += time - before
        open_now[kind] += change
        before = time
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
