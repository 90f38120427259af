"""How long the exchanges of a step take, by latency and bandwidth (the alpha-beta model). Imports no torch.

    seconds = steps inside a host · latency there + steps between hosts · latency there + bytes that a rank sends ÷ bandwidth

The steps are those of the algorithms that MPI libraries take for long messages (Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", IJHPCA 19(1), 2005): Rabenseifner's all-reduce, 2⌈log₂ n⌉; a ring for an all-gather,
and pairwise exchange for a reduce-scatter, n-1; a tree for a broadcast, ⌈log₂ n⌉. Of a ring over several hosts one step less than
there are hosts is between two of them, as NCCL counts (its src/graph/tuning.cc). Bytes are those of collectives.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

NEVER_HIDDEN = ("tp", "pp")  # purposes: a layer or a stage needs what is sent at once


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that exchange with one another.

    Attributes:
        links: by how many GPUs of a host it reaches another host; 0: it is on one.
    """

    ranks: int
    hosts: int = 1
    links: int = 0


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What a rank sends in a step for one purpose: ``sent`` bytes in ``calls`` calls of a collective (a name of ``bench``)."""

    purpose: str
    collective: str
    sent: float
    calls: float
    group: Group


@dataclass(frozen=True, kw_only=True)
class Link:
    """Seconds per step of an algorithm; bytes per second that a rank sends, of its share of its host's adapters between hosts."""

    latency: float
    bandwidth: float


@dataclass(frozen=True, kw_only=True)
class Links:
    """By collective; one that is not in it is not known."""

    inside: Mapping[str, Link]
    between: Mapping[str, Link]

    def seconds(self, exchange: Exchange) -> float:
        """Of all of its calls, with nothing else running.

        Raises:
            KeyError: the collective is not known there.
        """
        group, name = exchange.group, exchange.collective
        if group.ranks == 1:
            return 0.0
        inside_steps, between_steps = steps(name, group.ranks, group.hosts)
        if group.hosts == 1:
            link = self.inside[name]
            return exchange.calls * inside_steps * link.latency + exchange.sent / link.bandwidth
        between = self.between[name]
        inside = self.inside.get(name, Link(latency=between.latency, bandwidth=math.inf))
        latency = inside_steps * inside.latency + between_steps * between.latency
        bandwidth = group.links * between.bandwidth
        if group.ranks > group.hosts:  # it also goes from rank to rank on a host
            bandwidth = min(bandwidth, inside.bandwidth)
        return exchange.calls * latency + exchange.sent / bandwidth


def steps(collective: str, ranks: int, hosts: int) -> tuple[int, int]:
    """How many steps of a collective's algorithm are inside a host, and between hosts, on each of which are as many ranks."""
    tree = math.ceil(math.log2(math.ceil(ranks / hosts))), math.ceil(math.log2(hosts))
    if collective == "allreduce":
        return 2 * tree[0], 2 * tree[1]
    if collective == "broadcast":
        return tree
    if collective == "sendrecv":
        return (1, 0) if hosts == 1 else (0, 1)
    return ranks - hosts, hosts - 1
