"""A step looked into: how many bytes a rank sends, and who computes what when in a pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from runner.backends.timing import synchronize
from runner.parallel.mesh import Layout
from runner.rendezvous.records.topology import Topology
from runner.tools.costs.collectives import bytes_sent
from runner.tools.costs.timeline import PipelinePass, Timeline
from runner.versions.torch_api import not_compiled
from runner.versions.torch_private import TorchDispatchMode


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the bytes that are sent in its context, by whatever part of torch.

    Attributes:
        sent: bytes, so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.sent = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation, and run it."""
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # such as a DTensor: it calls again with what it holds
        self.sent += bytes_sent(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


@contextmanager
def count_sent() -> Iterator[_Counter]:
    """Count what is sent; compiled parts of a model run as they are written."""
    with not_compiled(), _Counter() as counter:
        yield counter


def record(
    step: Callable[[], object], stages: Sequence[Any], layout: Layout, topology: Topology, device: torch.device
) -> Timeline:
    """Run a step, and return the passes of the pipeline that rank 0 is in. Collective.

    Ranks of a host have one clock. The hosts' clocks are set by a barrier, so they agree to its duration.

    Args:
        stages: of torch's pipelining, on this rank.
    """
    passes: list[PipelinePass] = []
    rank = dist.get_rank()
    dist.barrier()
    start = time.perf_counter()
    with _timed(stages, rank, passes, device):
        step()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, (start, passes))
    zero = {one: min(every[one][0] for one in host.ranks) for host in topology.hosts for one in host.ranks}
    shifted = [
        replace(one, start=one.start - zero[number], end=one.end - zero[number])
        for number in _pipeline_of(layout, 0)
        for one in every[number][1]
    ]
    first = min(one.start for one in shifted)
    return Timeline(tuple(replace(one, start=one.start - first, end=one.end - first) for one in shifted))


def _pipeline_of(layout: Layout, rank: int) -> list[int]:
    """The ranks that have the stages of a rank's model, in the order of stages."""
    return next(group for group in layout.groups("pipeline") if rank in group)


@contextmanager
def _timed(stages: Sequence[Any], rank: int, passes: list[PipelinePass], device: torch.device) -> Iterator[None]:
    """Record each pass of these stages."""

    def timed(stage: Any, call: Callable[..., Any], kind_of: Callable[[dict[str, Any]], str]) -> Callable[..., Any]:
        def run(number: int, *args: Any, **options: Any) -> Any:
            synchronize(device)
            start = time.perf_counter()
            result = call(number, *args, **options)
            synchronize(device)
            kind, end = kind_of(options), time.perf_counter()
            passes.append(
                PipelinePass(rank=rank, stage=stage.stage_index, micro_batch=number, kind=kind, start=start, end=end)
            )
            return result

        return run

    for stage in stages:
        for name, kind_of in _PASSES.items():
            setattr(stage, name, timed(stage, getattr(stage, name), kind_of))
    try:
        yield
    finally:
        for stage in stages:
            for name in _PASSES:
                delattr(stage, name)  # the class has its own


def _of_backward(options: dict[str, Any]) -> str:
    return "backward" if options.get("full_backward", True) else "inputs"


# The methods of a stage that torch's schedules call (2.13 and 2.14), and what they compute.
_PASSES: dict[str, Callable[[dict[str, Any]], str]] = {
    "forward_one_chunk": lambda _: "forward",
    "backward_one_chunk": _of_backward,
    "backward_weight_one_chunk": lambda _: "weights",
}
