"""Degrees of parallelism, and where they put the ranks."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.parallel.mesh import Degrees, lay_out
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.topology import Topology, topology_of


def topology(hosts: list[int]) -> Topology:
    """Ranks on hosts, by the host of each."""
    return topology_of([RankRecord(host_key=str(host), host=f"node{host}") for host in hosts])


def test_degrees_that_do_not_divide_the_ranks_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(UsageError) as caught:
        Degrees.of(8, tensor=3)
    assert str(caught.value) == (
        "tensor(3) = 3 does not divide 8 ranks (8 = 3 × 2 + 2); start 6 or 9, or take smaller degrees"
    )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=16))
def test_replicas_alone_are_numbered_as_the_ranks_are(hosts: list[int]) -> None:
    layout = lay_out(topology(hosts), Degrees.of(len(hosts)))
    assert [layout.data_rank(rank) for rank in range(len(hosts))] == list(range(len(hosts)))


@given(st.data())
def test_a_tensor_group_is_on_one_host_under_any_mapping(data: st.DataObject) -> None:
    """Cyclic, by blocks, uneven or shuffled."""
    tensor = data.draw(st.sampled_from([1, 2, 4]))
    groups = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))  # of each host
    hosts = data.draw(st.permutations([host for host, count in enumerate(groups) for _ in range(count * tensor)]))
    pipeline = data.draw(st.sampled_from([p for p in (1, 2, 3) if sum(groups) % p == 0]))
    degrees = Degrees.of(len(hosts), tensor=tensor, pipeline=pipeline)
    layout = lay_out(topology(hosts), degrees)
    assert sorted(layout.ranks) == list(range(len(hosts)))
    assert math.prod(astuple(degrees)) == len(hosts)
    for start in range(0, len(hosts), tensor):
        group = layout.ranks[start : start + tensor]
        assert len({hosts[rank] for rank in group}) == 1
        assert len({layout.data_rank(rank) for rank in group}) == 1
    shares = [layout.data_rank(rank) for rank in range(len(hosts))]
    assert sorted(shares) == sorted(list(range(degrees.data)) * tensor * pipeline)


@given(st.data())
def test_shards_and_stages_are_on_one_host_under_cyclic_mapping(data: st.DataObject) -> None:
    """Hosts of unequal sizes, whose ranks are dealt out in turn: what communicates least goes across."""
    tensor, shard, replicate = (data.draw(st.sampled_from([1, 2])) for _ in range(3))
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))  # stages, or replicas, of each host
    has_stages = data.draw(st.booleans())
    near = tensor * shard * (replicate if has_stages else 1)
    turns = range(max(counts) * near)
    hosts = [host for turn in turns for host, count in enumerate(counts) if turn < count * near]
    layout = lay_out(
        topology(hosts), Degrees.of(len(hosts), tensor=tensor, shard=shard, pipeline=sum(counts) if has_stages else 1)
    )
    assert layout.is_ascending
    assert sorted(layout.ranks) == list(range(len(hosts)))
    if layout.degrees.shard == layout.degrees.tensor == layout.degrees.pipeline == 1:
        return  # replicas alone are numbered as the ranks are
    for start in range(0, len(hosts), near):
        assert len({hosts[rank] for rank in layout.ranks[start : start + near]}) == 1


def test_a_tensor_group_across_hosts_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"tensor\(2\) does not divide the 3 ranks of host node0.*a multiple of 2 ranks"
    ):
        lay_out(topology([0, 0, 0, 1]), Degrees.of(4, tensor=2))
    assert lay_out(topology([0, 1, 0, 1]), Degrees.of(4, tensor=4)).ranks == (0, 1, 2, 3)  # whole hosts
