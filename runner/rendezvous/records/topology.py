"""The hosts of the ranks, read from their records; never computed from a number of ranks per host."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records


class Host(NamedTuple):
    """A host and its ranks, in the order of their local ranks."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The hosts of the job, in the order of their lowest rank, and every rank's record."""

    hosts: tuple[Host, ...]
    records: Records

    @property
    def size(self) -> int:
        return len(self.records)

    def host_index(self, rank: int) -> int:
        """The index of the rank's host among the hosts."""
        return self._places[0][rank]

    def local_rank(self, rank: int) -> int:
        """The rank's number on its host, from 0."""
        return self._places[1][rank]

    def local_size(self, rank: int) -> int:
        """How many ranks share the rank's host."""
        return len(self.hosts[self.host_index(rank)].ranks)

    def hosts_where(self, field: str, is_so: Callable[[Any], bool]) -> list[str]:
        """The names of the hosts on which this is true of a field of a rank's record."""
        values, index = self.records.of_field(field)
        found = list(map(is_so, values))
        return [host.name for host in self.hosts if any(found[index[rank] if index else 0] for rank in host.ranks)]

    @cached_property
    def _places(self) -> tuple[array[int], array[int]]:
        """The host's index and the local rank of every rank."""
        host_indices, local_ranks = (array("I", bytes(4 * self.size)) for _ in range(2))
        for index, host in enumerate(self.hosts):
            for local, rank in enumerate(host.ranks):
                host_indices[rank], local_ranks[rank] = index, local
        return host_indices, local_ranks


def topology_of(everyone: Sequence[RankRecord]) -> Topology:
    """The topology shown by the records of all ranks, in rank order.

    The launcher's local ranks are kept if those of a host are 0, 1, 2, …; otherwise they are numbered by rank.
    """
    records = everyone if isinstance(everyone, Records) else Records.of(everyone)
    names, claims = records.column("host"), records.column("local_rank")
    hosts = []
    for ranks in _by_host(records):
        claimed = {rank: claims[rank] for rank in ranks}
        is_complete = sorted(c for c in claimed.values() if c is not None) == list(range(len(ranks)))
        ordered = sorted(ranks, key=claimed.__getitem__) if is_complete else ranks
        hosts.append(Host(names[ranks[0]], tuple(ordered)))
    return Topology(tuple(hosts), records)


def _by_host(records: Records) -> list[list[int]]:
    """The ranks of each host.

    Ranks of one machine that see different networks are on several virtual hosts, unless their launcher says that they are
    all on one: then each is in a container of its own, and they share the machine's cores and devices.
    """
    keys, sizes = records.column("host_key"), records.column("local_size")
    hosts: list[list[int]] = []
    for ranks in _grouped(range(len(records)), records.column("machine")):
        are_one = all(sizes[rank] == len(ranks) for rank in ranks)
        hosts += [ranks] if are_one else _grouped(ranks, keys)
    return sorted(hosts)


def _grouped(ranks: Iterable[int], values: Sequence[Any]) -> list[list[int]]:
    """The ranks by their values, each group in the order of rank."""
    groups: dict[Any, list[int]] = {}
    for rank in ranks:
        groups.setdefault(values[rank], []).append(rank)
    return list(groups.values())


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
