from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.topology import ranks_text, topology_of


def record(host: str, local_rank: int | None = None) -> RankRecord:
    return RankRecord(host=host, host_key=host, local_rank=local_rank)


@pytest.mark.parametrize(("said", "found"), [([0, 2, 1], [0, 2, 1]), ([0, 0, None], [0, 1, 2])])
def test_a_launchers_own_order_of_local_ranks_is_kept_if_it_makes_sense(
    said: list[int | None], found: list[int]
) -> None:
    topology = topology_of([record("a", local_rank) for local_rank in said])
    assert [topology.local_rank(rank) for rank in range(3)] == found


def placed(host: str, machine: str, network: str, local_size: int, local_rank: int = 0) -> RankRecord:
    key = f"{machine}/{network}"
    return RankRecord(host=host, machine=machine, host_key=key, local_size=local_size, local_rank=local_rank)


@pytest.mark.parametrize(
    ("ranks", "hosts"),
    [
        # Containers with names of their own; by hand each says that it is alone.
        ([placed("c0", "m", "net", 2, 0), placed("c1", "m", "net", 2, 1)], {"c0": (0, 1)}),
        ([placed(name, "m", "net", 1) for name in ("c0", "c1")], {"c0": (0, 1)}),
        # Containers with a network each, which the launcher counts together: on one machine, and on two.
        ([placed("c0", "m", "net0", 2, 0), placed("c1", "m", "net1", 2, 1)], {"c0": (0, 1)}),
        ([placed(f"c{n}", "mn"[n % 2], f"net{n}", 2, n // 2) for n in range(4)], {"c0": (0, 2), "c1": (1, 3)}),
        # Virtual hosts of a machine.
        ([placed("ab"[n % 2], "m", f"net{n % 2}", 2, n // 2) for n in range(4)], {"a": (0, 2), "b": (1, 3)}),
    ],
)
def test_which_ranks_are_on_one_host(ranks: list[RankRecord], hosts: dict[str, tuple[int, ...]]) -> None:
    assert {host.name: host.ranks for host in topology_of(ranks).hosts} == hosts


def test_machines_of_one_name_stay_two() -> None:
    """Clones that are all called localhost: each has started its own kernel, and all have the first network namespace."""
    ranks = [placed("localhost", machine, "net", 1) for machine in "mn"]
    assert [host.ranks for host in topology_of(ranks).hosts] == [(0,), (1,)]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30))
def test_any_mapping_gives_each_rank_one_place(hosts: list[str]) -> None:
    topology = topology_of([record(host) for host in hosts])
    assert sorted(rank for host in topology.hosts for rank in host.ranks) == list(range(len(hosts)))
    for rank, host in enumerate(hosts):
        assert topology.hosts[topology.host_index(rank)].name == host
        assert topology.local_rank(rank) == hosts[:rank].count(host)
        assert topology.local_size(rank) == hosts.count(host)


def test_hosts_on_which_a_package_is_missing() -> None:
    ranks = [RankRecord(host=h, host_key=h, packages=p) for h, p in (("a", ["mpi4py"]), ("b", ["horovod", "mpi4py"]))]
    topology = topology_of(ranks)
    for package, hosts in (("mpi4py", []), ("horovod", ["a"]), ("ucc", ["a", "b"])):
        assert topology.hosts_where("packages", lambda packages, name=package: name not in packages) == hosts


def test_ranks_in_words() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([5, 0, 1, 2]) == "ranks 0-2, 5"
