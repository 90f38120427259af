"""All ranks' records, held and sent so that what is alike is there once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.hardware.core_map import cores_of, cores_text
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import Records, flat, is_flat, packed

FIELDS = st.one_of(
    st.none(), st.integers(-5, 5), st.text(max_size=5), st.sampled_from(["json:x", "a"]), st.lists(st.integers(0, 3))
)


RECORDS = st.lists(st.builds(RankRecord, host=FIELDS, arguments=FIELDS, pid=st.integers()), min_size=1)


@given(RECORDS)
def test_what_is_received_is_what_was_packed(records: list[RankRecord]) -> None:
    message = json.loads(json.dumps(packed([flat(record) for record in records])))
    received = Records.received(message)
    assert list(received) == records
    assert received.column("host") == [record.host for record in records]
    assert received[-1] == records[-1]
    assert received[:2] == records[:2]
    for value, ranks in received.by_value("host"):
        assert all(records[rank].host == value for rank in ranks)


def test_a_rank_beyond_the_last_is_an_error() -> None:
    with pytest.raises(IndexError):
        Records.of([RankRecord()])[1]


@pytest.mark.parametrize("nonsense", [None, 1, [], "x", {"a": []}, {"a": {}}, {str(n): 0 for n in range(65)}])
def test_what_is_no_record_is_told(nonsense: Any) -> None:
    assert not is_flat(nonsense)


@given(st.sets(st.integers(0, 300)))
def test_cores_as_text(cores: set[int]) -> None:
    assert cores_of(cores_text(cores)) == cores
    assert cores_text([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"  # as Linux writes them


def test_ten_thousand_ranks_are_told_what_differs_between_them() -> None:
    """Each bound to cores of its own, and a process of its own: of some 6 MB of records 0.2 MB have to be said."""
    own = RankRecord(target="train.py", arguments=["--lr", "0.1"], python="3.11.7", torch="2.14.0", size=10_000)
    everyone = [
        replace(own, rank=rank, host=f"node{rank // 128}", resources={"cores": str(rank % 128)}, pid=10**6 + rank)
        for rank in range(10_000)
    ]
    message = json.dumps(packed([flat(one) for one in everyone]))
    assert len(message) < 200_000
    assert Records.received(json.loads(message))[9_999] == everyone[9_999]
