"""What a workload knows about the job it is part of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from runner.errors import RunnerError, UsageError
from runner.job import Job

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Given to a workload's ``main(run, argv)``; the process group is initialised."""

    job: Job
    workload: str  # the module's name
    # Called with (run, task, options) in fit's place: a tool that looks at the training, whatever the workload.
    instead: Callable[[Run, Any, Any], Any] | None = None

    @property
    def rank(self) -> int:
        return self.job.rank

    @property
    def size(self) -> int:
        return self.job.size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that prints and writes."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        return torch.device(self.job.placement.torch_device)

    @cached_property
    def mesh(self) -> DeviceMesh:
        """All ranks in one dimension, ``data``."""
        return init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("data",))

    def say(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self.is_main:
            print(text, flush=True)

    def sum(self, *numbers: float) -> list[float]:
        """The sums of these numbers over all ranks, in double precision. Collective."""
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def on_main(self, work: Callable[[], T]) -> T:
        """Do something on rank 0, and give its result to all ranks. Collective.

        Raises:
            RunnerError: rank 0 raised it, or a kind of it; all ranks do, with its message.
        """
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer[0] = work()
            except RunnerError as error:
                error.told_by_all = True
                answer[1] = error
        if self.size > 1:
            dist.broadcast_object_list(answer, src=0, device=self.device)
        if answer[1] is not None:
            raise answer[1]
        result: T = answer[0]
        return result

    def agree(self, problem: str | None, kind: type[RunnerError] = UsageError) -> None:
        """Raise on all ranks what is a problem on any. Collective.

        Raises:
            RunnerError: of this kind; some rank has a problem. The message names its host where there are several.
        """
        problems: list[str | None] = [None] * self.size
        if self.size > 1:
            dist.all_gather_object(problems, problem)
        else:
            problems = [problem]
        found = {text: rank for rank, text in reversed(list(enumerate(problems))) if text is not None}
        if found:
            hosts = self.job.topology.hosts
            where = {rank: f" (host {host.name})" for host in hosts for rank in host.ranks if len(hosts) > 1}
            raise kind("; ".join(text + where.get(rank, "") for text, rank in found.items()), told_by_all=True)
