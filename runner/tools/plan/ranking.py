"""The order of layouts: first those that fit, the simplest first.

The order is that of the slides' "which strategy to use when": ddp, if the model fits whole on a GPU; zero1; fsdp; tensor
parallelism within a host; pipeline stages. Combinations follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.base.quantities import size_text
from runner.parallel.registry import traits_of
from runner.tools.plan.layouts import RECOMPUTATION, Candidate, Cluster
from runner.tools.plan.planning import Planned

_DDP, _ZERO1, _FSDP, _TP, _PP = range(5)


def _ways(candidate: Candidate) -> list[int]:
    """Return what a layout combines, in the order of the slides."""
    options = candidate.options
    traits = traits_of(options.strategy)
    ways = []
    if candidate.degrees.data > 1 or not candidate.is_model_parallel:
        ways.append(_FSDP if options.is_sharded else _ZERO1 if traits.shards_optimizer else _DDP)
    return ways + [_TP] * (options.tp > 1) + [_PP] * (options.pp > 1)


def _complexity(candidate: Candidate, cluster: Cluster) -> tuple[Any, ...]:
    """Return a key by which the simplest layout comes first.

    Among layouts of as many ways, those that divide no layer and no batch come first, then those that compute least again.
    Of one kind, shards within a host come before shards across hosts.
    """
    options, degrees, ways = candidate.options, candidate.degrees, _ways(candidate)
    again = RECOMPUTATION.index(options.activation_checkpointing)
    spans = any(cluster.spans_hosts(candidate.layout, name) for name in ("data", "shard", "tensor"))
    return len(ways), candidate.is_model_parallel, again, ways, options.tp, options.pp, spans, degrees.replicate


def ranked(plans: Sequence[Planned], cluster: Cluster, limit: float) -> list[Planned]:
    """Return the layouts that fit, the simplest first, then the others, the smallest first."""
    fitting = [one for one in plans if one.memory.total <= limit]
    others = [one for one in plans if one.memory.total > limit]
    return [
        *sorted(fitting, key=lambda one: _complexity(one.candidate, cluster)),
        *sorted(others, key=lambda one: one.memory.total),
    ]


def reason(best_first: Sequence[Planned], limit: float, enough: Planned | None = None) -> str:
    """Say why the first layout is recommended, or what to do if it does not fit.

    Args:
        enough: what fits on the smallest number of GPUs, if none of the layouts does.
    """
    best, room = best_first[0], size_text(limit)
    need = size_text(best.memory.total)
    if best.memory.total > limit:
        return f"no layout fits {room}: the smallest, {best.candidate.name}, needs {need} per GPU; take {_remedies(best, enough)}"
    ways = _ways(best.candidate)
    smallest: dict[int, Planned] = {}  # by each simpler way that does not fit
    for one in best_first:
        way, *others = _ways(one.candidate)
        if not others and one.memory.total > limit and (1, [way]) < (len(ways), ways):
            smallest.setdefault(way, one)
    failed = ", ".join(f"{one.candidate.name} {size_text(one.memory.total)}" for _, one in sorted(smallest.items()))
    return f"it is the simplest that fits: it needs {need} of {room} per GPU" + (
        f" (too much: {failed})" if failed else ""
    )


def _remedies(smallest: Planned, enough: Planned | None) -> str:
    options = smallest.candidate.options
    found = ["a smaller batch"]
    if enough:
        one = enough.candidate
        how = one.options.activation_checkpointing
        again = "" if how == "none" else f", {how} recomputation"
        found.insert(0, f"{one.gpus} GPUs ({one.name}{again}: {size_text(enough.memory.total)})")
    if options.activation_checkpointing != "full":
        found.append("--activation-checkpointing full")
    if options.offload == "none":
        found.append("--strategy fsdp --offload cpu")
    return " or ".join(filter(None, (", ".join(found[:-1]), found[-1])))
