from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.launch.host_lists import expand_counts, expand_hosts


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(1, 50)), min_size=1, max_size=8))
def test_counts_expand_to_what_they_were_made_of(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{n}(x{k})" if k > 1 else str(n) for n, k in runs)
    assert expand_counts(text) == [n for n, k in runs for _ in range(k)]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("node[1-3,07],gpu1", ["node1", "node2", "node3", "node07", "gpu1"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("a.b-c.example,d", ["a.b-c.example", "d"]),
    ],
)
def test_forms_seen_in_the_wild(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


def test_bad_lists_are_refused() -> None:
    for expand, texts in ((expand_hosts, ["", "node[1-", "node[a-b]", "node]1["]), (expand_counts, ["", "2(3)", "x2"])):
        for text in texts:
            with pytest.raises(ValueError, match="is not"):
                expand(text)
