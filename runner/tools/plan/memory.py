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


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one GPU; ``host``: bytes that ``--offload cpu`` moves to the host's memory."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    gathered: int  # other ranks' shards, while FSDP has them
    host: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.gathered

    def as_dict(self) -> dict[str, int]:
        """Return the parts and their sum, for JSON."""
        return asdict(self) | {"total": self.total}


def memory_of(candidate: Candidate, parameters: Sequence[Parameter], rule: StateRule, activations: int) -> Memory:
    """Return the memory of the rank with the largest shards of these parameters (with tensor parallelism: of its parts)."""
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
    """Return the shape of the first rank's part: fully_shard cuts the first dimension as ``torch.chunk`` does."""
    return (math.ceil(shape[0] / ranks), *shape[1:]) if shape else ()


def is_wrapped(candidate: Candidate) -> bool:
    """Return whether a run uses fully_shard: for shards, and for replicas of a model that is divided (parallel/sharded.py)."""
    options = candidate.options
    is_replicated = candidate.is_model_parallel and (candidate.degrees.data > 1 or options.precision != "fp32")
    return options.is_sharded or is_replicated


def _gathered(candidate: Candidate, parameters: Sequence[Parameter]) -> int:
    """Return the bytes that fully_shard has whole at a time.

    It has the parameters of two units (one computes, the next is gathered) and the gradients of one, in the precision of
    computing. It has the same gradients once more in the precision of the parameters, to sum them. A pipeline stage keeps the
    parameters of all its units for the next micro-batch, and sums the gradients of all units over its micro-batches.
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
