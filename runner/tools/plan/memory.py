"""The memory of a rank: parameters, gradients, optimizer state, activations, and what FSDP gathers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from runner.parallel.registry import traits_of
from runner.tools.plan.layouts import Candidate
from runner.tools.plan.optimizers import StateRule
from runner.tools.plan.tracing import Parameter

# Where a model cannot be followed: the "high-end estimate" of the course's 24 bytes per parameter, of which weights, gradients and
# Adam's state take the other 16.
PER_PARAMETER_ACTIVATIONS = 8


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one GPU; ``host`` is what ``--offload cpu`` has in the host's memory instead."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    gathered: int  # what FSDP has of other ranks' shards for the time being
    host: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.gathered

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self) | {"total": self.total}


def memory_of(candidate: Candidate, parameters: Sequence[Parameter], rule: StateRule, activations: int) -> Memory:
    """Of the rank with the largest shards, which has these parameters (under tensor parallelism its parts of them)."""
    options, degrees = candidate.options, candidate.degrees
    local = {one.name: _shard(one.shape, degrees.shard) for one in parameters}
    own = sum(one.item * math.prod(local[one.name]) for one in parameters)
    gradients = sum(one.item * math.prod(local[one.name]) for one in parameters if one.is_trained)
    states = {one.name: rule.bytes(one.name, local[one.name]) for one in parameters}
    if traits_of(options.strategy).shards_optimizer:
        counts = {one.name: one.count for one in parameters}
        optimizer = max(sum(states[name] for name in share) for share in rule.shares(counts, degrees.data))
    else:
        optimizer = sum(states.values())
    if options.outer_optimizer != "none":
        optimizer += 2 * own  # the last average, and the outer optimizer's momentum
    gathered = _gathered(candidate, parameters)
    if options.offload == "cpu":
        return Memory(
            parameters=0,
            gradients=0,
            optimizer=0,
            activations=activations,
            gathered=gathered,
            host=own + gradients + optimizer,
        )
    return Memory(parameters=own, gradients=gradients, optimizer=optimizer, activations=activations, gathered=gathered)


def _shard(shape: Sequence[int], ranks: int) -> tuple[int, ...]:
    """The first rank's part under fully_shard, which cuts the first dimension as ``torch.chunk`` does."""
    return (math.ceil(shape[0] / ranks), *shape[1:]) if shape else ()


def is_wrapped(candidate: Candidate) -> bool:
    """Whether fully_shard is at work: for shards, and for replicas of a model under tensor or pipeline parallelism (parallel/sharded.py)."""
    options = candidate.options
    is_replicated = candidate.is_model_parallel and (candidate.degrees.data > 1 or options.precision != "fp32")
    return options.is_sharded or is_replicated


def _gathered(candidate: Candidate, parameters: Sequence[Parameter]) -> int:
    """What fully_shard has whole at a time.

    In the precision of computing, the parameters of two units (the next is gathered while one computes) and one unit's gradients;
    in that of the parameters the same gradients once more, as they are summed. In a pipeline the parameters of all of the
    stage's units, as it keeps them for the next micro-batch, and the gradients of all, which it sums over its micro-batches.
    """
    if not is_wrapped(candidate):
        return 0
    options = candidate.options
    item = 2 if options.precision != "fp32" else None
    sizes: Counter[int] = Counter()
    computed: Counter[int] = Counter()  # gradients
    summed: Counter[int] = Counter()
    for one in parameters:
        sizes[one.unit] += one.count * (item or one.item)
        if one.is_trained:
            computed[one.unit] += one.count * (item or one.item)
            summed[one.unit] += one.bytes
    if options.pp > 1:
        return sum(sizes.values()) + max(computed.values(), default=0) + sum(summed.values())
    return sum(sorted(sizes.values())[-2:]) + max((computed[unit] + summed[unit] for unit in computed), default=0)
