"""What a workload knows about the job it is part of."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from runner.backends.collective_errors import agree
from runner.backends.process_group import with_host_memory
from runner.base.errors import RunnerError, UsageError
from runner.job import Job
from runner.parallel import Setting
from runner.parallel.mesh import Layout, device_mesh
from runner.parallel.settings import ParallelSettings
from runner.versions.extras import problem_of

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Given to a workload's ``main(run, argv)``; the process group is initialised."""

    job: Job
    workload: str  # the module's name
    layout: Layout  # which rank has which part of the model and the data
    settings: Any = None  # a ``Settings``, where the workload takes one, or the script has said them
    # A tool that trains the task itself sets this; it is called with (run, task, options) instead of fit() or benchmark().
    train_by: Callable[[Run, Any, Any], Any] | None = None
    # For decisions that all ranks have to take alike, such as which layers a step leaves out: fit() seeds it by seed and step.
    common_random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311  # no secret

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

    @property
    def data_rank(self) -> int:
        """The index of this rank's share of the samples, from 0. Ranks that share one model replica have the same."""
        return self.layout.data_rank(self.rank)

    @property
    def data_size(self) -> int:
        """The number of shares that the samples are divided into."""
        return self.layout.degrees.data

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The layout as torch's device mesh: the dimension ``data``, and others if there are any. Collective."""
        return device_mesh(self.layout, self.device.type)

    def setting(self, dtype: str, options: ParallelSettings) -> Setting:
        """Where and how a strategy is to train here. Collective."""
        mesh, backend = self.mesh, with_host_memory(self.job.backend)
        if options.offload == "cpu" and backend != self.job.backend:  # gradients are not on the GPU
            mesh = device_mesh(self.layout, self.device.type, backend)
        return Setting(device=self.device, dtype=getattr(torch, dtype), mesh=mesh, options=options)

    def group(self, dimension: str = "data") -> dist.ProcessGroup:
        """This rank's process group along a dimension of the mesh."""
        return self.mesh.get_group(dimension)

    def print(self, text: str) -> None:
        """Print a line, on rank 0."""
        if self.is_main:
            print(text, flush=True)

    def sum(self, *numbers: float, dimension: str | None = "data") -> list[float]:
        """The sums of these numbers, in double precision. Collective.

        Args:
            dimension: of the mesh, along which ranks add; None: all ranks of the job.
        """
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(total, group=None if dimension is None else self.group(dimension))
        return total.tolist()

    def on_main(self, work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
        """Call ``work`` on rank 0, and return its result on all ranks of the job. Collective.

        Args:
            group: of all ranks, for a thread that has its own.

        Raises:
            RunnerError: rank 0 raised it or a subclass; all ranks raise the same.
        """
        answer: list[Any] = [None, None]
        if self.is_main:
            try:
                answer[0] = work()
            except RunnerError as error:
                error.on_all_ranks = True
                answer[1] = error
        if self.size > 1:
            dist.broadcast_object_list(answer, src=0, group=group, device=None if group else self.device)
        if answer[1] is not None:
            raise answer[1]
        result: T = answer[0]
        return result

    def load(self, package: str, *, needed_by: str = "") -> Any:
        """Import a package that not every installation has. Collective.

        Args:
            needed_by: what needs it here; "": this workload.

        Raises:
            UsageError: on a rank it is not installed, or does not load.
        """
        self.agree(problem_of(package, needed_by or self.workload))
        return importlib.import_module(package)

    def agree(
        self,
        problem: RunnerError | str | None,
        kind: type[RunnerError] = UsageError,
        group: dist.ProcessGroup | None = None,
        *,
        fix: str = "",
    ) -> None:
        """Raise on all ranks of the job if any of them has a problem: see ``runner.backends.collective_errors``. Collective."""
        agree(problem, kind, group, fix=fix)
