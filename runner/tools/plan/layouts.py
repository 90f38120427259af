"""The layouts of a job: all combinations of strategy and degrees that its GPUs and the task's plan allow. Imports no torch."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from runner.base.errors import UsageError
from runner.base.settings import settings_in
from runner.parallel.mesh import Degrees, Layout, lay_out
from runner.parallel.registry import traits_of
from runner.parallel.settings import SCHEDULES, ParallelSettings
from runner.rendezvous.records.topology import Host, Topology
from runner.versions.features import need

if TYPE_CHECKING:
    from runner.parallel.task import Plan

_STRATEGIES = ("ddp", "zero1", "fsdp")  # the user may ask for another
RECOMPUTATION = ("none", "selective", "full")  # from the fastest to the smallest
PER_HOST = 8  # GPUs of a DGX or HGX system, and of most hosts like it


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The GPUs, equally many on each host."""

    gpus: int
    hosts: int

    @classmethod
    def of(cls, gpus: int, per_host: int | None = None) -> Cluster:
        """Return a cluster of ``per_host`` GPUs each; by default the largest number up to 8 that divides the GPUs."""
        each = per_host or max(number for number in _divisors(gpus) if number <= PER_HOST)
        return cls(gpus=gpus, hosts=gpus // each)

    @property
    def per_host(self) -> int:
        return self.gpus // self.hosts

    def topology(self) -> Topology:
        """Return the topology that a job on the cluster would measure. Its records say only how many ranks there are."""
        each = self.per_host
        hosts = tuple(Host(f"host{n}", tuple(range(n * each, (n + 1) * each))) for n in range(self.hosts))
        return Topology(hosts, cast("Any", range(self.gpus)))

    def spans_hosts(self, layout: Layout, dimension: str) -> bool:
        """Return whether a group of ranks along a dimension of the mesh is on more than one host."""
        groups = layout.groups(dimension) if dimension in layout.dimensions else []
        return any(len({rank // self.per_host for rank in ranks}) > 1 for ranks in groups)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout that may fit. ``batch``: samples per step of one data-parallel rank."""

    options: ParallelSettings
    layout: Layout
    batch: int

    @property
    def degrees(self) -> Degrees:
        return self.layout.degrees

    @property
    def gpus(self) -> int:
        return len(self.layout.ranks)

    @property
    def is_model_parallel(self) -> bool:
        """Return whether a rank computes only a part of the model."""
        return self.options.tp > 1 or self.options.pp > 1

    @property
    def micro_batch(self) -> int:
        """The number of samples that go through the model at once."""
        return self.batch // self.options.micro_batches

    @property
    def name(self) -> str:
        """A short name: ``ddp 8``, ``fsdp 2×4`` (replicas × shards), ``fsdp 2, tp 4``, ``tp 4, pp 2``."""
        degrees, options = self.degrees, self.options
        data = (
            f"{degrees.replicate}×{degrees.shard}" if degrees.replicate > 1 and degrees.shard > 1 else f"{degrees.data}"
        )
        parts = [f"{options.strategy} {data}"] if degrees.data > 1 or not self.is_model_parallel else []
        parts += [f"{kind} {degree}" for kind, degree in (("tp", options.tp), ("pp", options.pp)) if degree > 1]
        return ", ".join(parts)

    def recomputing(self) -> Iterator[Candidate]:
        """Yield the layout with more and more recomputation."""
        splits = self.options.pp > 1 and SCHEDULES[self.options.pp_schedule].splits_backward
        for how in RECOMPUTATION:
            if how != "selective" or not splits:
                yield replace(self, options=replace(self.options, activation_checkpointing=how))


def candidates(
    cluster: Cluster,
    plan: Plan,
    base: ParallelSettings,
    given: Mapping[str, Any],
    *,
    batch: int,
    global_batch: int | None = None,
) -> tuple[list[Candidate], Counter[str]]:
    """Return all layouts, and the reasons why others are left out, with the number of layouts for each reason.

    Args:
        base: the workload's own options.
        given: the values that the user asks for, by the name of the field.
        batch: samples per data-parallel rank and step.
        global_batch: samples per step of all ranks, instead of ``batch``.

    Raises:
        UsageError: there is no layout.
    """
    found: dict[tuple[str, Degrees], Candidate] = {}
    left_out: Counter[str] = Counter()
    for choice in _choices(cluster, plan, given):
        try:
            candidate = candidate_of(cluster, plan, base, dict(given) | choice, batch, global_batch)
        except UsageError as error:
            left_out[str(error)] += 1
            continue
        # With one data-parallel rank there is nothing to shard, so all strategies are alike.
        alike = candidate.options.strategy if candidate.degrees.data > 1 or "strategy" in given else ""
        found.setdefault((alike, candidate.degrees), candidate)
    if not found:
        raise UsageError(f"no layout of {cluster.gpus} GPUs is possible: {next(iter(left_out))}")
    return list(found.values()), left_out


def _choices(cluster: Cluster, plan: Plan, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all choices that divide the GPUs; if there is none, the given values, which are then refused."""
    strategies = [given["strategy"]] if "strategy" in given else _STRATEGIES
    tensor = [given["tp"]] if "tp" in given else _divisors(cluster.per_host) if plan.tensor else [1]
    pipeline = [given["pp"]] if "pp" in given else _divisors(cluster.gpus) if plan.pipeline else [1]
    is_empty = True
    for strategy, tp, pp in itertools.product(strategies, tensor, pipeline):
        data, rest = divmod(cluster.gpus, tp * pp)
        traits = traits_of(strategy)
        if rest or (tp * pp > 1 and not traits.is_divisible):
            continue
        replicas: list[int | None] = [None]
        if "replicate" in given:
            replicas = [given["replicate"]]
        elif traits.shards:
            replicas += [number for number in _divisors(data) if 1 < number < data]
        for replicate in replicas:
            is_empty = False
            yield {"strategy": strategy, "tp": tp, "pp": pp, "replicate": replicate}
    if is_empty:
        yield {"strategy": ParallelSettings.strategy, "tp": 1, "pp": 1, "replicate": None} | {
            name: value for name, value in given.items() if name in ("strategy", "tp", "pp", "replicate")
        }


def candidate_of(
    cluster: Cluster, plan: Plan, base: ParallelSettings, wanted: dict[str, Any], batch: int, global_batch: int | None
) -> Candidate:
    """Return one layout, with all values filled in as for a run. ``wanted``: values by name, among them all of LAYOUT.

    Raises:
        UsageError: a run would be refused.
    """
    # These follow from the layout, not from the workload's defaults.
    own = {name: getattr(base, name) for name in settings_in(ParallelSettings)}
    own |= {"micro_batches": None, "stages_per_rank": None}
    if wanted["tp"] == 1:
        wanted = wanted | {"sequence_parallel": False, "loss_parallel": False}
    if wanted["pp"] == 1:
        wanted = wanted | {"stages_per_rank": None, "pp_schedule": ParallelSettings.pp_schedule}
    options = ParallelSettings(**(own | wanted))
    if problem := plan.lacks(options):
        raise UsageError(f"this workload cannot be trained with {problem}")
    layout = lay_out(cluster.topology(), options.degrees(cluster.gpus))
    need(*options.features, *options.features_in(layout), device="cuda")
    if options.tp > 1:
        need("plan of sharded layers")
    data = layout.degrees.data
    if global_batch is not None and global_batch % data:
        raise UsageError(f"--global-batch-size {global_batch} does not divide among {data} data-parallel ranks")
    own_batch = global_batch // data if global_batch is not None else batch
    if own_batch % options.micro_batches:
        raise UsageError(f"--micro-batches {options.micro_batches} does not divide a rank's batch of {own_batch}")
    return Candidate(options=options, layout=layout, batch=own_batch)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
