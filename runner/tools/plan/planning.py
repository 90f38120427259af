"""What a layout costs: memory, idle time and traffic of its ranks, put together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from runner.base.errors import UsageError
from runner.parallel.pipeline.stages import balanced
from runner.parallel.registry import traits_of
from runner.tools.plan.layouts import Candidate, Cluster
from runner.tools.plan.memory import PER_PARAMETER_ACTIVATIONS, Memory, is_wrapped, memory_of
from runner.tools.plan.optimizers import StateRule
from runner.tools.plan.schedules import timeline
from runner.tools.plan.support import check_supported, reported_in_one_line
from runner.tools.plan.tracing import Parameter, Pass, Traced, Tracer
from runner.tools.plan.traffic import Traffic, handed_on, optimizer_sharded, replicated, sharded, total
from runner.versions.features import need

# What the estimate of a step's time assumes: 40 % of the peak of an H100 SXM (torchtitan reports 33 to 39 % of it in bf16 on 8), its NVLink,
# and an adapter of 400 Gb/s per GPU, as a DGX H100 has (NVIDIA's data sheets; operations and bytes per second, one way).
_SHARE, _HALF, _SINGLE = 0.4, 989.5e12, 67e12
_INSIDE, _BETWEEN = 450e9, 50e9
# Forward passes that a step takes: the backward pass takes two, and what is computed again one more, or half of its products.
_PASSES = {"none": 3.0, "selective": 3.5, "full": 4.0}


@dataclass(frozen=True, kw_only=True)
class Step:
    """The estimated seconds of a step: each GPU computes, waits for others of its pipeline, and sends, one after the other."""

    computing: float
    idle: float
    sending: float

    @property
    def seconds(self) -> float:
        return self.computing + self.idle + self.sending


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A layout and what it costs.

    Attributes:
        by_stage: the memory of the ranks at each place of the pipeline.
        idle: share of the step in which ranks wait for others in the pipeline.
        traffic: of the rank that sends most, per step.
        operations: floating-point operations of the rank that has most, per step.
        problem: why activations are not followed but estimated, if so.
    """

    candidate: Candidate
    by_stage: tuple[Memory, ...]
    idle: float
    traffic: Traffic
    operations: float
    problem: str = ""

    @property
    def memory(self) -> Memory:
        """Of the rank that needs most."""
        return max(self.by_stage, key=lambda memory: memory.total)

    @property
    def step(self) -> Step:
        peak = _SINGLE if self.candidate.options.precision == "fp32" else _HALF
        computing = self.operations / (_SHARE * peak)
        return Step(
            computing=computing,
            idle=computing * self.idle / (1 - self.idle),
            sending=total(self.traffic.within) / _INSIDE + self.traffic.per_link / _BETWEEN,
        )

    @property
    def seconds_per_sample(self) -> float:
        """Of all GPUs together."""
        return self.step.seconds / (self.candidate.batch * self.candidate.degrees.data)


@reported_in_one_line()
def plan_layout(
    candidate: Candidate, cluster: Cluster, tracer: Tracer, rule: StateRule, costs: Sequence[float]
) -> Planned:
    """Plan one layout.

    Raises:
        UsageError: a run would be refused, as the model cannot be cut into so many stages or does not run with its layers
            sharded so; or torch cannot follow it.
    """
    check_supported(candidate, tracer)
    options = candidate.options
    traced = tracer.trace(options, candidate.micro_batch, casts_parameters=is_wrapped(candidate))
    if traced.problem and options.tp > 1:
        whole = replace(options, tp=1, sequence_parallel=False, loss_parallel=False)
        if not tracer.trace(whole, candidate.micro_batch, casts_parameters=is_wrapped(candidate)).problem:
            raise UsageError(f"--tp {options.tp}: the model does not run with its layers sharded so ({traced.problem})")
    owners = options.stage_owners
    cuts = balanced(costs, len(owners))
    stages = [_distinct([one for piece in cut for one in traced.parameters[piece]]) for cut in cuts]
    tied = _tied(stages, owners)
    if options.pp > 1 and not any(one.is_trained for one in stages[0]):
        need("idle stage", device="cuda")
    passes = [_together(traced, cut) for cut in cuts]
    times = timeline(options)
    memories, traffics, operations = [], [], []
    for rank in range(options.pp):
        own = [number for number, owner in enumerate(owners) if owner == rank]
        parameters = [one for number in own for one in stages[number]]
        kept = {number: _kept(passes[number], stages[number]) for number in own}
        activations = times.largest(rank, kept) + max(one.temporary if (one := passes[number]) else 0 for number in own)
        memories.append(memory_of(candidate, parameters, rule, activations))
        traffics.append(_traffic(candidate, cluster, parameters, passes, own, tied))
        done = sum(one.operations for number in own if (one := passes[number]))
        operations.append(_PASSES[options.activation_checkpointing] * options.micro_batches * done)
    return Planned(
        candidate=candidate,
        by_stage=tuple(memories),
        idle=times.idle,
        traffic=max(traffics, key=lambda traffic: traffic.total),
        operations=max(operations),
        problem=traced.problem,
    )


def _distinct(parameters: Sequence[Parameter]) -> list[Parameter]:
    """A tied one once."""
    return list({one.identity: one for one in reversed(parameters)}.values())[::-1]


def _tied(stages: Sequence[Sequence[Parameter]], owners: Sequence[int]) -> set[int]:
    """The parameters of which several stages have a copy.

    Raises:
        UsageError: two of them are on one rank, which parallel/pipeline/pipeline.py refuses.
    """
    having: dict[int, list[int]] = {}
    for owner, stage in zip(owners, stages, strict=True):
        for one in stage:
            having.setdefault(one.identity, []).append(owner)
    if any(len(set(ranks)) < len(ranks) for ranks in having.values()):
        raise UsageError("a tied parameter would have two copies on one rank", fix="take another --pp-schedule")
    return {identity for identity, ranks in having.items() if len(ranks) > 1}


def _together(traced: Traced, cut: range) -> Pass | None:
    """The pass of a stage, of the pieces in it."""
    if traced.passes is None:
        return None
    own = [traced.passes[piece] for piece in cut]
    return Pass(
        kept=sum(one.kept for one in own),
        temporary=max(one.temporary for one in own),
        output=own[-1].output,
        sent=sum(one.sent for one in own),
        operations=sum(one.operations for one in own),
    )


def _kept(one: Pass | None, parameters: Sequence[Parameter]) -> int:
    return one.kept if one else PER_PARAMETER_ACTIVATIONS * sum(parameter.count for parameter in parameters)


def _traffic(
    candidate: Candidate,
    cluster: Cluster,
    parameters: Sequence[Parameter],
    passes: Sequence[Pass | None],
    own: Sequence[int],
    tied: Collection[int],
) -> Traffic:
    """Of a rank with these parameters and stages; ``passes`` are those of all stages."""
    options, layout = candidate.options, candidate.layout
    traffic, micro_batches = Traffic(), options.micro_batches
    pair = min(1, cluster.links(layout, "pipeline"))  # from one rank to one
    _add_data_parallel(traffic, candidate, cluster, parameters)
    copied = sum(one.bytes for one in parameters if one.identity in tied and one.is_trained)
    if copied:  # their gradients, to the other stage
        traffic.add("pp", copied / candidate.degrees.shard, pair)
    for number in own:
        if one := passes[number]:
            traffic.add("tp", micro_batches * one.sent, cluster.links(layout, "tensor"))
        for other, sender in (
            (number + 1, number),
            (number - 1, number - 1),
        ):  # outputs forward, inputs' gradients back
            if 0 <= other < len(passes) and other not in own and (one := passes[sender]):
                traffic.add("pp", handed_on(one.output, micro_batches), pair)
    return traffic


def _add_data_parallel(
    traffic: Traffic, candidate: Candidate, cluster: Cluster, parameters: Sequence[Parameter]
) -> None:
    """What the strategy sends."""
    options, degrees, layout = candidate.options, candidate.degrees, candidate.layout
    weights = float(sum(one.bytes for one in parameters))
    gradients = float(sum(one.bytes for one in parameters if one.is_trained))
    narrow = 0.5 if options.precision != "fp32" and parameters[0].item == 4 else 1.0  # what fully_shard gathers
    if options.is_sharded:
        sharing = cluster.links(layout, "shard" if "shard" in layout.dimensions else "data")
        micro_batches = options.micro_batches
        gathers, scatters = (1, 1) if options.pp > 1 else (2 * micro_batches, micro_batches)
        sent = sharded(gradients, narrow * weights, degrees.shard, gathers, scatters)
        traffic.add(options.strategy, sent, sharing)
        number = scatters * replicated(gradients / degrees.shard, degrees.replicate)
        traffic.add("replicas", number, cluster.links(layout, "replicate" if degrees.shard > 1 else "data"))
        return
    traits = traits_of(options.strategy)
    # powerSGD's first steps exchange all; what it sends later depends on the shapes.
    exchanged = (0.5 if options.comm_hook in ("bf16", "fp16") and parameters[0].item == 4 else 1.0) * gradients
    every = options.sync_every if traits.is_local else 1
    copies = cluster.links(layout, "replicate" if "replicate" in layout.dimensions else "data")
    if traits.shards_optimizer:
        traffic.add(options.strategy, optimizer_sharded(exchanged, weights, degrees.data), copies)
    else:
        traffic.add(options.strategy, replicated(exchanged, degrees.data) / every, copies)
