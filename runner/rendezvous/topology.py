"""Who runs where, as measured by exchange: never computed from a rank and a number of ranks per host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Host:
    """A host and its ranks, in the order of their local ranks."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The hosts of the job, in the order of their lowest rank, and every rank's record."""

    hosts: tuple[Host, ...]
    records: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        return len(self.records)

    def host_index(self, rank: int) -> int:
        """The index of the rank's host among the hosts."""
        return next(index for index, host in enumerate(self.hosts) if rank in host.ranks)

    def local_rank(self, rank: int) -> int:
        """The rank's number on its host, from 0."""
        return self.hosts[self.host_index(rank)].ranks.index(rank)

    def local_size(self, rank: int) -> int:
        """How many ranks share the rank's host."""
        return len(self.hosts[self.host_index(rank)].ranks)


def topology_of(records: Sequence[dict[str, Any]]) -> Topology:
    """The topology that the records of all ranks, in rank order, show.

    A launcher's local ranks are kept where those of a host are 0, 1, 2, …; otherwise ranks are counted.
    """
    by_host: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        by_host.setdefault(record["host_key"], []).append(rank)
    hosts = []
    for ranks in by_host.values():
        claimed = {rank: records[rank]["local_rank"] for rank in ranks}
        is_complete = sorted(c for c in claimed.values() if c is not None) == list(range(len(ranks)))
        ordered = sorted(ranks, key=claimed.__getitem__) if is_complete else ranks
        hosts.append(Host(records[ranks[0]]["host"], tuple(ordered)))
    return Topology(tuple(hosts), tuple(records))


def ranks_text(ranks: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` → ``ranks 0-2, 5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)
