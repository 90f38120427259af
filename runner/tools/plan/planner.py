"""The layouts of a workload, planned for any number of GPUs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from runner.base.errors import UsageError
from runner.job import Job
from runner.options.command import Given
from runner.parallel.batch_forms import parts_of, with_tensors
from runner.parallel.mesh import Degrees, lay_out
from runner.parallel.precision import named, of_inputs
from runner.tools.plan.layouts import PER_HOST, Candidate, Cluster, candidates
from runner.tools.plan.optimizers import state_rule
from runner.tools.plan.planning import Planned, plan_layout
from runner.tools.plan.ranking import ranked
from runner.tools.plan.tracing import Tracer
from runner.tools.tables.table import show_progress
from runner.tools.workloads import load_workload, training_of
from runner.training.data.feeds import order_of, with_batch_of
from runner.training.data.loading import Reading
from runner.training.data.samples import look_at
from runner.training.data.source import source_of
from runner.training.run import Run
from runner.versions.torch_private import FakeStore  # also registers the backend

MOST = 4096  # GPUs up to which it is searched for what fits


class Planner:
    """Plans the layouts of any cluster for one workload, and follows the workload's model once for each way that matters."""

    def __init__(self, job: Job, workload: str, wanted: Mapping[str, Any], given: Given) -> None:
        """Run the workload up to its training, as one rank would, and make its model without memory.

        Raises:
            UsageError: it is no workload, an argument is wrong, or it trains without ``fit()``.
        """
        module = load_workload(workload, "plan")
        run = Run(job=job, workload=workload, layout=lay_out(job.topology, Degrees.of(1)))
        with fake_process_group(1):
            found = training_of(module, run, given.without_parallel(_shaping(wanted)))
        if found is None:
            raise UsageError(f"{workload} trains without fit(), so there is no task to plan for")
        self._task, options = found
        source = source_of(self._task)
        self._options = own = with_batch_of(source, options)
        if not source.is_stream:
            keys = order_of(source, 0, 1, own).first(1)
            form = parts_of if self._task.batch_loss is None else with_tensors
            if problem := look_at(source, keys, Reading(), check=form).problem:
                raise problem
        self._tracer = Tracer(self._task, named(own.dtype))
        self.model = self._tracer.model
        self._wanted = dict(wanted)
        if "precision" not in wanted and own.precision == "fp32" and of_inputs(self.model) == torch.float32:
            self._wanted["precision"] = "bf16"
        is_free = "activation_checkpointing" not in wanted and own.activation_checkpointing == "none"
        self._may_recompute = is_free and bool(self._task.plan.units(self.model))
        self._rule = state_rule(self._task.make_optimizer, self.model)

    def plans(self, cluster: Cluster, limit: float) -> tuple[list[Planned], Counter[str]]:
        """Return the plans, the best first, and the reasons why layouts are left out.

        Raises:
            UsageError: no layout is possible.
        """
        own = self._options
        found, left_out = candidates(
            cluster, self._task.plan, own, self._wanted, batch=own.batch_size, global_batch=own.global_batch_size
        )
        plans = []
        for number, candidate in enumerate(found, 1):
            show_progress(f"{cluster.gpus} GPUs, {number} of {len(found)}: {candidate.name}")
            try:
                plans.append(self._plan(candidate, limit))
            except UsageError as error:
                left_out[str(error)] += 1
        show_progress("")
        if not plans:
            raise UsageError([*left_out][-1])  # about the model, which says more than the first ones, about layouts
        return ranked(plans, cluster, limit), left_out

    def _plan(self, candidate: Candidate, limit: float) -> Planned:
        """Plan a layout with the least recomputation by which it fits, or else with the most."""
        for one in candidate.recomputing() if self._may_recompute else [candidate]:
            found = plan_layout(one, self._tracer, self._rule)
            if found.memory.total <= limit:
                break
        return found

    def enough(self, cluster: Cluster, limit: float) -> Planned | None:
        """Return what fits on the smallest number of GPUs above the cluster's; None if nothing is found.

        One host takes as many GPUs as those of the cluster, or up to 8; more GPUs are whole hosts.
        """
        each = cluster.per_host if cluster.hosts > 1 else PER_HOST
        sizes = [*range(cluster.gpus + 1, each), *range(each * (1 + cluster.gpus // each), MOST + 1, each)]

        @cache
        def fitting(gpus: int) -> Planned | None:
            wider = Cluster.of(gpus, cluster.per_host if cluster.hosts > 1 else None)
            try:
                best = self.plans(wider, limit)[0][0]
            except UsageError:
                return None
            return best if best.memory.total <= limit else None

        end = 1
        while end < len(sizes) and fitting(sizes[end - 1]) is None:
            end *= 2  # large clusters have many layouts, so they come last
        place = bisect_left(sizes, True, hi=min(end, len(sizes)), key=lambda gpus: fitting(gpus) is not None)
        return fitting(sizes[place]) if place < len(sizes) else None


def _shaping(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of parallelism by which a workload may make another task."""
    shaping = {name: True for name in ("sequence_parallel", "loss_parallel") if wanted.get(name)}
    return shaping | {"tp": max(2, wanted.get("tp", 2))} if shaping else {}


@contextmanager
def fake_process_group(ranks: int) -> Iterator[None]:
    """Make this process rank 0 of a default process group of so many ranks, which exchanges nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
