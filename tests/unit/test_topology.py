from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runner.rendezvous.record import RankRecord
from runner.rendezvous.topology import ranks_text, topology_of


def record(host: str, local_rank: int | None = None) -> RankRecord:
    return RankRecord(host=host, host_key=host, local_rank=local_rank)


def test_uneven_slots() -> None:
    topology = topology_of([record("a", 0), record("a", 1), record("a", 2), record("b", 0)])
    assert [host.ranks for host in topology.hosts] == [(0, 1, 2), (3,)]
    assert [topology.local_size(rank) for rank in range(4)] == [3, 3, 3, 1]


def test_cyclic_mapping() -> None:
    topology = topology_of([record("a", 0), record("b", 0), record("a", 1), record("b", 1)])
    assert [host.ranks for host in topology.hosts] == [(0, 2), (1, 3)]
    assert [topology.local_rank(rank) for rank in range(4)] == [0, 0, 1, 1]


def test_a_launchers_own_order_of_local_ranks_is_kept() -> None:
    topology = topology_of([record("a", 0), record("a", 2), record("a", 1)])
    assert [topology.local_rank(rank) for rank in range(3)] == [0, 2, 1]


def test_local_ranks_that_make_no_sense_are_counted_instead() -> None:
    topology = topology_of([record("a", 0), record("a", 0), record("a", None)])
    assert [topology.local_rank(rank) for rank in range(3)] == [0, 1, 2]


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
