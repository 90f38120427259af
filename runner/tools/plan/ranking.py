"""Which layout to take: of those that fit, the fastest by the estimate in planning.py, in which links across hosts are slow.

Where several are about as fast, the one that is simplest by the slides' "which strategy to use when": DDP, where the model fits
whole on a GPU; ZeRO-1, where it does without the whole optimizer state; FSDP, sharded within a host; FSDP across hosts, tensor
parallelism within a host, or pipeline stages across hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.base.quantities import size_text
from runner.parallel.registry import traits_of
from runner.tools.plan.layouts import Cluster
from runner.tools.plan.planning import Planned

_WHOLE, _ZERO1, _SHARDED, _OTHERS = range(4)
_ABOUT = 1.1  # times as long is about as fast: the estimate is no better


@dataclass(frozen=True)
class Advice:
    """The recommended layout, None if none fits, and why: a sentence."""

    planned: Planned | None
    reason: str


def ranked(plans: Sequence[Planned], cluster: Cluster, limit: float) -> list[Planned]:
    """All of them, the best first; those that do not fit come last, the smallest first."""
    times = [one.seconds_per_sample for one in plans if one.memory.total <= limit]
    fast = _ABOUT * min(times, default=0.0)

    def key(one: Planned) -> tuple[float, ...]:
        if one.memory.total > limit:
            return 2, one.memory.total, one.seconds_per_sample
        if one.seconds_per_sample > fast:
            return 1, one.seconds_per_sample, one.memory.total
        return 0, _level(one, cluster), one.seconds_per_sample

    return sorted(plans, key=key)


def _level(one: Planned, cluster: Cluster) -> int:
    candidate = one.candidate
    if candidate.is_model_parallel:
        return _OTHERS
    if not candidate.options.is_sharded:
        return _ZERO1 if traits_of(candidate.options.strategy).shards_optimizer else _WHOLE
    dimension = "shard" if "shard" in candidate.layout.dimensions else "data"
    return _OTHERS if cluster.spans_hosts(candidate.layout, dimension) else _SHARDED


def advise(best_first: Sequence[Planned], cluster: Cluster, limit: float, *, enough: Planned | None = None) -> Advice:
    """The first, and its reason.

    Args:
        enough: what fits on the smallest number of GPUs, if none of these does.
    """
    best = best_first[0]
    need, room = size_text(best.memory.total), size_text(limit)
    if best.memory.total > limit:
        options = best.candidate.options
        remedies = [
            *([_on_more(enough)] if enough else []),
            "a smaller batch",
            *(["--activation-checkpointing full"] if options.activation_checkpointing != "full" else []),
            *(["--strategy fsdp --offload cpu"] if options.offload == "none" else []),
        ]
        return Advice(
            None,
            f"no layout fits {room}: the smallest, {best.candidate.name}, needs {need} per GPU; take "
            f"{', '.join(remedies[:-1])}{' or ' if remedies[:-1] else ''}{remedies[-1]}",
        )
    level = _level(best, cluster)
    lesser = [one for below in range(level) if (one := _of(best_first, cluster, below)) and one.memory.total > limit]
    failed = ", ".join(f"{one.candidate.name} {size_text(one.memory.total)}" for one in lesser)
    whys = {
        _WHOLE: "the model fits whole on each GPU, and nothing is simpler",
        _ZERO1: "the model fits whole on each GPU once the optimizer's state is sharded",
        _SHARDED: "the model's shards fit" + (", with all gathering inside a host" if cluster.hosts > 1 else ""),
        _OTHERS: _others(best, cluster),
    }
    return Advice(
        best, f"{whys[level]}: it needs {need} of {room} per GPU" + (f" (too much: {failed})" if failed else "")
    )


def _on_more(enough: Planned) -> str:
    one = enough.candidate
    how = (
        ""
        if one.options.activation_checkpointing == "none"
        else f", {one.options.activation_checkpointing} recomputation"
    )
    return f"{one.gpus} GPUs ({one.name}{how}: {size_text(enough.memory.total)})"


def _others(best: Planned, cluster: Cluster) -> str:
    options = best.candidate.options
    is_within = not cluster.spans_hosts(best.candidate.layout, "tensor")
    parts = [
        (options.tp > 1 and is_within, "layers are sharded within a host, where links are fast"),
        (options.tp > 1 and not is_within, "layers are sharded across hosts, as --tp says"),
        (options.pp > 1, f"stages send little{' across hosts' if cluster.hosts > 1 else ''}"),
        (options.tp == options.pp == 1, "shards go across hosts"),
    ]
    return " and ".join(text for applies, text in parts if applies) + ", which is the fastest estimate of what fits"


def _of(plans: Sequence[Planned], cluster: Cluster, level: int) -> Planned | None:
    """The smallest of a level; it does not fit if a higher level is taken."""
    own = [one for one in plans if _level(one, cluster) == level]
    return min(own, key=lambda one: one.memory.total, default=None)
