"""Which layout to take: the slides' "which strategy to use when", as an order and a sentence.

The model fits whole on a GPU: DDP. It does without the whole optimizer state: ZeRO-1. It does not fit: FSDP, sharded within a
host. That does not fit either: FSDP across hosts, tensor parallelism within a host, pipeline stages across hosts; of these the
one that is fastest by the estimate in planning.py, in which links across hosts are slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.parallel.options import traits_of
from runner.tools.plan.layouts import Cluster
from runner.tools.plan.planning import Planned
from runner.tools.plan.sizes import size_text

_WHOLE, _ZERO1, _SHARDED, _OTHERS = range(4)


@dataclass(frozen=True)
class Advice:
    """The recommended layout, None if none fits, and why: a sentence."""

    planned: Planned | None
    reason: str


def ranked(plans: Sequence[Planned], cluster: Cluster, limit: int) -> list[Planned]:
    """All of them, the best first; those that do not fit come last, the smallest first."""

    def key(one: Planned) -> tuple[bool, float, float]:
        if one.memory.total > limit:
            return True, one.memory.total, one.seconds_per_sample
        return False, _level(one, cluster), one.seconds_per_sample

    return sorted(plans, key=key)


def _level(one: Planned, cluster: Cluster) -> int:
    candidate = one.candidate
    if candidate.is_divided:
        return _OTHERS
    if not candidate.options.is_sharded:
        return _ZERO1 if traits_of(candidate.options.strategy).shards_optimizer else _WHOLE
    dimension = "shard" if "shard" in candidate.layout.dimensions else "data"
    return _OTHERS if cluster.spans_hosts(candidate.layout, dimension) else _SHARDED


def advise(best_first: Sequence[Planned], cluster: Cluster, limit: int) -> Advice:
    """The first, and its reason."""
    best = best_first[0]
    need, room = size_text(best.memory.total), size_text(limit)
    if best.memory.total > limit:
        options = best.candidate.options
        remedies = [
            "more GPUs",
            "a smaller batch",
            *(["--activation-checkpointing full"] if options.activation_checkpointing != "full" else []),
            *(["--strategy fsdp --offload cpu"] if options.offload == "none" else []),
        ]
        return Advice(
            None,
            f"no layout fits {room}: the smallest, {best.candidate.name}, needs {need} per GPU; take "
            f"{', '.join(remedies[:-1])} or {remedies[-1]}",
        )
    level = _level(best, cluster)
    lesser = [_of(best_first, cluster, below) for below in range(level)]
    failed = ", ".join(f"{one.candidate.name} {size_text(one.memory.total)}" for one in lesser if one is not None)
    whys = {
        _WHOLE: "the model fits whole on each GPU, and nothing is simpler",
        _ZERO1: "the model fits whole on each GPU once the optimizer's state is divided",
        _SHARDED: "the model does not fit whole, and its shards do"
        + (", with all gathering inside a host" if cluster.hosts > 1 else ""),
        _OTHERS: _others(best, cluster),
    }
    return Advice(
        best, f"{whys[level]}: it needs {need} of {room} per GPU" + (f" (too much: {failed})" if failed else "")
    )


def _others(best: Planned, cluster: Cluster) -> str:
    options = best.candidate.options
    is_within = not cluster.spans_hosts(best.candidate.layout, "tensor")
    parts = [
        (options.tp > 1 and is_within, "layers are divided within a host, where links are fast"),
        (options.tp > 1 and not is_within, "layers are divided across hosts, as --tp says"),
        (options.pp > 1, f"stages send little{' across hosts' if cluster.hosts > 1 else ''}"),
        (options.tp == options.pp == 1, "shards within a host are too large, so they go across hosts"),
    ]
    return " and ".join(text for applies, text in parts if applies) + ", which is the fastest estimate of what fits"


def _of(plans: Sequence[Planned], cluster: Cluster, level: int) -> Planned | None:
    """The smallest of a level; it does not fit if a higher level is taken."""
    own = [one for one in plans if _level(one, cluster) == level]
    return min(own, key=lambda one: one.memory.total, default=None)
