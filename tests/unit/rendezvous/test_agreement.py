"""What ranks refuse about each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.base.errors import RefusedError
from runner.launch.detect import detect
from runner.rendezvous.records.compatibility import compare_ranks
from runner.rendezvous.records.record import RankRecord, own_record
from runner.versions.torch_build import torch_build


def records(count: int = 3, **changes: Any) -> list[RankRecord]:
    """Records of ranks that fit; ``changes`` are made to the last one."""
    own = own_record(detect({}), target="train.py", digest="ab12", arguments=["--lr", "0.1"])
    found = [replace(own, rank=rank, size=count, local_rank=rank, host=f"node{rank}") for rank in range(count)]
    found[-1] = replace(found[-1], **changes)
    return found


def test_ranks_that_fit_give_the_topology() -> None:
    assert compare_ranks(records()).size == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"python": "3.9.0"}, r"Python: \S+ on ranks 0-1 \(node0, node1\); 3.9.0 on rank 2 \(node2\)"),
        ({"torch": "2.6.0"}, r"torch: \S+ on ranks 0-1 .*; 2.6.0 on rank 2"),
        ({"python": "3.9.0", "torch": "2.6.0"}, r"Python: .* \| torch: "),
        ({"runner": "0.0.1"}, r"the runner: .*0.0.1 on rank 2"),
        ({"target": "x.py"}, r"the target: train.py on ranks 0-1 .*; x.py on rank 2"),
        ({"digest": "ffff"}, r"the target's content: ab12 on ranks 0-1 .*; ffff on rank 2"),
        (
            {"arguments": ["--lr", "0.2"]},
            r"the ranks differ in the arguments: --lr 0.1 on ranks 0-1 .*; --lr 0.2 on rank 2",
        ),
        ({"size": 4}, r"the number of ranks: 3 on .*; 4 on rank 2"),
        ({"rank": 0}, r"the ranks say they are \[0, 1, 0\]"),
        ({"problem": "no script train.py"}, r"^no script train.py \(on rank 2 \(node2\) only\)$"),
        ({"problem": "no script x.py", "fix": "copy it"}, r"^no script x.py \(on rank 2 \(node2\) only\); copy it$"),
    ],
)
def test_a_rank_that_differs_is_refused_with_the_difference(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        compare_ranks(records(**changes))


def test_torchs_version_is_read_without_importing_it() -> None:
    import torch

    assert torch_build().version == torch.__version__
