"""The memory of each rank in one layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.base.errors import UsageError
from runner.parallel import precision
from runner.parallel.pipeline.stages import balanced
from runner.parallel.registry import traits_of
from runner.parallel.support import check_divisible, check_even, check_zero, described
from runner.tools.plan.layouts import Candidate
from runner.tools.plan.memory import Memory, is_wrapped, memory_of
from runner.tools.plan.optimizers import StateRule
from runner.tools.plan.schedules import most_held
from runner.tools.plan.tracing import Parameter, Pass, Tracer
from runner.versions.features import need


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A layout and the memory that it needs.

    Attributes:
        by_stage: the memory of the ranks at each place of the pipeline.
    """

    candidate: Candidate
    by_stage: tuple[Memory, ...]

    @property
    def memory(self) -> Memory:
        """The memory of the rank that needs most."""
        return max(self.by_stage, key=lambda memory: memory.total)


def check_supported(candidate: Candidate, tracer: Tracer) -> None:
    """Check what a run in this layout would check of the model and its optimizer.

    Raises:
        UsageError: a run would be refused.
    """
    model, options = tracer.model, candidate.options
    tracer.task.check_stages(options)
    precision.check(model, options.precision, will_be_wrapped=is_wrapped(candidate))
    if traits_of(options.strategy).shards_optimizer:
        check_zero(model)
    if is_wrapped(candidate) or options.tp > 1:
        check_divisible(model)
    if options.tp > 1:
        check_even(tracer.sharded(options, casts=False).model, candidate.degrees.shard)
    if is_wrapped(candidate) and tracer.optimizer_problem is not None:
        raise tracer.optimizer_problem


def plan_layout(candidate: Candidate, tracer: Tracer, rule: StateRule) -> Planned:
    """Plan one layout.

    Raises:
        UsageError: a run would be refused, because the model cannot be cut into so many stages or does not run with its
            layers sharded so; or torch cannot follow the model.
    """
    try:
        check_supported(candidate, tracer)
        return _plan(candidate, tracer, rule)
    except UsageError:
        raise
    except Exception as error:  # of the model or of torch
        sharded = f" with --tp {candidate.options.tp}" if candidate.options.tp > 1 else ""
        raise UsageError(
            f"plan cannot follow the model{sharded} by the shapes of its tensors ({described(error)})"
        ) from error


def _plan(candidate: Candidate, tracer: Tracer, rule: StateRule) -> Planned:
    options = candidate.options
    traced = tracer.trace(options, candidate.micro_batch, casts_parameters=is_wrapped(candidate))
    owners = options.stage_owners
    cuts = balanced(tracer.costs, len(owners)) if options.pp > 1 else [range(len(tracer.pieces))]
    stages = [_distinct([one for piece in cut for one in traced.parameters[piece]]) for cut in cuts]
    _check_tied(stages, owners)
    if options.pp > 1 and not any(one.is_trained for one in stages[0]):
        need("idle stage", device="cuda")
    passes = [_together([traced.passes[piece] for piece in cut]) for cut in cuts]
    memories = []
    for rank in range(options.pp):
        own = [number for number, owner in enumerate(owners) if owner == rank]
        held = most_held(options, rank, {number: passes[number].kept for number in own})
        activations = held + max(passes[number].temporary for number in own)
        parameters = [one for number in own for one in stages[number]]
        memories.append(memory_of(candidate, parameters, rule, activations))
    return Planned(candidate=candidate, by_stage=tuple(memories))


def _distinct(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters, each tied one once."""
    return list({one.identity: one for one in reversed(parameters)}.values())[::-1]


def _check_tied(stages: Sequence[Sequence[Parameter]], owners: Sequence[int]) -> None:
    """Check that no rank has a parameter in two stages, which parallel/pipeline/pipeline.py refuses.

    Raises:
        UsageError: a rank has one.
    """
    copies = [(owner, one.identity) for owner, stage in zip(owners, stages, strict=True) for one in stage]
    if len(set(copies)) < len(copies):
        raise UsageError("a tied parameter would have two copies on one rank", fix="take another --pp-schedule")


def _together(passes: Sequence[Pass]) -> Pass:
    """Return the pass of a stage, made of those of its pieces."""
    return Pass(kept=sum(one.kept for one in passes), temporary=max(one.temporary for one in passes))
