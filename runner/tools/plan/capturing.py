"""Find out what a workload would train: run its ``main`` up to the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.job import Job
from runner.options.command import Given
from runner.parallel.mesh import Degrees, lay_out
from runner.tools.workloads import load_workload, training_of

if TYPE_CHECKING:
    from runner.parallel.task import Task
    from runner.training.settings import StepSettings


@dataclass(frozen=True)
class Captured:
    """A task and the options that its workload has read."""

    task: Task
    options: StepSettings


def capture(job: Job, name: str, given: Given) -> Captured:
    """Return the task of a workload with the given options, as one rank would train it.

    Raises:
        UsageError: it is no workload, an argument is wrong, or it trains without ``fit()``.
    """
    module = load_workload(name, "plan")
    from runner.training.run import Run

    run = Run(job=job, workload=name, layout=lay_out(job.topology, Degrees.of(1)))
    with fake_process_group(1):
        found = training_of(module, run, given)
    if found is None:
        raise UsageError(f"{name} trains without fit(), so there is no task to plan for")
    return Captured(*found)


@contextmanager
def fake_process_group(ranks: int) -> Iterator[None]:
    """Make this process rank 0 of a default process group of so many ranks, which exchanges nothing."""
    import torch.distributed as dist

    from runner.versions.torch_private import FakeStore  # also registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
