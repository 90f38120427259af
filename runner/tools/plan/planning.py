"""The memory of each rank in one layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from runner.base.errors import UsageError
from runner.parallel import precision
from runner.parallel.pipeline.stages import balanced
from runner.parallel.registry import traits_of
from runner.parallel.support import check_divisible, check_even, check_zero, described
from runner.tools.plan.layouts import Candidate
from runner.tools.plan.memory import PER_PARAMETER_ACTIVATIONS, Memory, is_wrapped, memory_of
from runner.tools.plan.optimizers import StateRule
from runner.tools.plan.schedules import most_held
from runner.tools.plan.tracing import Parameter, Pass, Tracer
from runner.versions.features import need


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A layout and the memory that it needs.

    Attributes:
        by_stage: the memory of the ranks at each place of the pipeline.
        problem: why activations are estimated, if the model cannot be followed.
    """

    candidate: Candidate
    by_stage: tuple[Memory, ...]
    problem: str = ""

    @property
    def memory(self) -> Memory:
        """The memory of the rank that needs most."""
        return max(self.by_stage, key=lambda memory: memory.total)


@contextmanager
def _reported_in_one_line() -> Iterator[None]:
    """Report what goes wrong in the model or in torch as the reason why a layout is left out.

    Raises:
        UsageError: something has gone wrong.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"it cannot be followed ({described(error)})") from error


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


@_reported_in_one_line()
def plan_layout(candidate: Candidate, tracer: Tracer, rule: StateRule) -> Planned:
    """Plan one layout.

    Raises:
        UsageError: a run would be refused, because the model cannot be cut into so many stages or does not run with its
            layers sharded so; or torch cannot follow the model.
    """
    check_supported(candidate, tracer)
    options = candidate.options
    traced = tracer.trace(options, candidate.micro_batch, casts_parameters=is_wrapped(candidate))
    if traced.problem and options.tp > 1:
        whole = replace(options, tp=1, sequence_parallel=False, loss_parallel=False)
        if not tracer.trace(whole, candidate.micro_batch, casts_parameters=is_wrapped(candidate)).problem:
            raise UsageError(f"--tp {options.tp}: the model does not run with its layers sharded so ({traced.problem})")
    owners = options.stage_owners
    cuts = balanced(tracer.costs, len(owners)) if options.pp > 1 else [range(len(tracer.pieces))]
    stages = [_distinct([one for piece in cut for one in traced.parameters[piece]]) for cut in cuts]
    _check_tied(stages, owners)
    if options.pp > 1 and not any(one.is_trained for one in stages[0]):
        need("idle stage", device="cuda")
    passes = [_together(traced.passes, cut, stage) for cut, stage in zip(cuts, stages, strict=True)]
    memories = []
    for rank in range(options.pp):
        own = [number for number, owner in enumerate(owners) if owner == rank]
        held = most_held(options, rank, {number: passes[number].kept for number in own})
        activations = held + max(passes[number].temporary for number in own)
        parameters = [one for number in own for one in stages[number]]
        memories.append(memory_of(candidate, parameters, rule, activations))
    return Planned(candidate=candidate, by_stage=tuple(memories), problem=traced.problem)


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


def _together(passes: Sequence[Pass] | None, cut: range, parameters: Sequence[Parameter]) -> Pass:
    """Return the pass of a stage, made of the pieces in ``cut``; an estimate if there are no passes."""
    if passes is None:
        return Pass(kept=PER_PARAMETER_ACTIVATIONS * sum(one.count for one in parameters), temporary=0)
    own = [passes[piece] for piece in cut]
    return Pass(kept=sum(one.kept for one in own), temporary=max(one.temporary for one in own))
