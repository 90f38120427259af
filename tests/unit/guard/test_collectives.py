"""What the ranks' last calls say together, when a job hangs; and how a guard asks for them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from runner.guard.hang import collectives
from runner.guard.hang.collectives import Answer, Call, Requests, answer, behind, lines
from runner.guard.hang.stacks import new_file
from tests.polling import poll_until

WORLD = "0"


def call(number: int, name: str = "all_reduce of 4", *, over: bool = False, group: str = WORLD) -> Call:
    title = "default_pg" if group == WORLD else "mesh_tp"
    return Call(
        group=group,
        title=title,
        ranks=[] if group == WORLD else [int(rank) for rank in group],
        number=number,
        name=name,
        is_over=over,
    )


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            {rank: [call(58)] for rank in (0, 2, 3)} | {1: [call(57, "broadcast of 2 x 3", over=True)]},
            "default_pg: ranks 0, 2-3 in collective 58 (all_reduce of 4); "
            "rank 1 done with collective 57 (broadcast of 2 x 3); missing: rank 1",
        ),
        (
            {0: [call(9)], 1: [call(9, "broadcast of 4")]},
            "default_pg: rank 0 in collective 9 (all_reduce of 4); rank 1 in collective 9 (broadcast of 4); "
            "these are different calls",
        ),
        (
            {0: [call(1)], 1: [call(0, "", over=True)]},
            "default_pg: rank 0 in collective 1 (all_reduce of 4); rank 1 in no collective yet; missing: rank 1",
        ),
        (  # only groups in which a rank waits are shown
            {
                0: [call(3, over=True), call(0, "recv of 8", group="01")],
                1: [call(3, over=True), call(0, "", over=True, group="01")],
                2: [call(3, over=True), call(5, over=True, group="23")],
            },
            "mesh_tp of ranks 0-1: rank 0 in recv of 8; rank 1 in no collective yet",
        ),
    ],
)
def test_which_ranks_are_in_which_call(found: dict[int, list[Call]], told: str) -> None:
    assert lines(found) == [f"process group {told}"]


def test_a_rank_that_does_not_answer_is_named_where_it_belongs() -> None:
    found = {0: [call(8), call(3, group="01")], 1: [call(8), call(3, group="01")], 2: [], 3: [call(7, over=True)]}
    assert lines(found) == [
        "process group default_pg: ranks 0-1 in collective 8 (all_reduce of 4); "
        "rank 3 done with collective 7 (all_reduce of 4); no answer from rank 2; missing: rank 3",
        "process group mesh_tp of ranks 0-1: ranks 0-1 in collective 3 (all_reduce of 4)",
    ]


def test_no_more_than_eight_groups_are_shown() -> None:
    shown = lines({0: [call(1, group=f"0{other}") for other in range(1, 10)]})
    assert len(shown) == 9
    assert shown[-1] == "and 1 more"


@pytest.mark.parametrize(
    ("found", "late"),
    [
        ({0: [call(58)], 1: [call(57, over=True)], 2: [call(58)]}, [1]),
        # rank 1 is missing, as it waits for rank 3
        (
            {
                0: [call(8), call(4, group="02", over=True)],
                1: [call(7, over=True), call(3, group="13")],
                2: [call(8), call(4, group="02", over=True)],
                3: [call(7, over=True), call(2, group="13", over=True)],
            },
            [3],
        ),
        ({0: [call(9)], 1: [call(9, "broadcast of 4")]}, []),  # different calls
        ({0: [call(9)], 1: [call(9)]}, []),  # a connection is broken
        ({0: [call(2, group="01")], 1: [call(1, group="01", over=True), call(9)], 2: [call(8, over=True)]}, [2]),
        ({0: [call(1)], 1: []}, []),  # it does not answer
    ],
)
def test_who_is_behind(found: dict[int, list[Call]], late: list[int]) -> None:
    assert behind(found) == late


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    asked, ask = os.pipe()
    yield asked, ask
    os.close(ask)
    os.close(asked)


def test_a_guard_asks_more_than_once(pipe: tuple[int, int]) -> None:
    asked, ask = pipe
    known = [[call(1000)], [call(2)], []]
    with new_file() as file:
        assert Requests(ask, file).take() == []  # nobody answers, within a second
        os.read(asked, 16)
        answer(asked, file, lambda: known.pop(0))
        assert Requests(ask, file).take() == [call(1000)]
        assert Requests(ask, file).take() == [call(2)]
        assert Requests(ask, file).take() == []


def test_a_call_that_has_ended_is_not_kept_in_memory(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors would be, for the whole training."""
    asked, ask = pipe
    monkeypatch.setattr(collectives, "_KEPT", 0.1)
    library: dict[str, Any] = {"Tensor": type("Tensor", (), {}), "weakref": weakref}
    text = "def broadcast(wait):\n tensor = Tensor()\n wait(True, 60.0)\n return weakref.ref(tensor)"
    exec(compile(text, "/opt/site-packages/torch/distributed/distributed_c10d.py", "exec"), library)
    lock = threading.Lock()
    lock.acquire()
    with new_file() as file:
        requests = Requests(ask, file)
        answer(asked, file, list)

        def is_seen() -> bool:
            requests.ask()
            poll_until(lambda: requests.answered() is not None, 60, "the answer")
            found = requests.answered()
            return found is not None and found.inside > 0

        def let_it_end() -> None:
            poll_until(is_seen, 60, "the call is seen")
            lock.release()

        threading.Thread(target=let_it_end).start()
        tensor = library["broadcast"](lock.acquire)
        poll_until(lambda: tensor() is None, 60, "the tensor is gone")


def fails() -> list[Call]:
    raise KeyError("profiling_name")


def test_an_error_is_no_answer(pipe: tuple[int, int]) -> None:
    asked, ask = pipe
    with new_file() as file:
        answer(asked, file, fails)
        assert Requests(ask, file).take() == []
        assert Requests(ask, file).answered() == Answer([], inside=0)
