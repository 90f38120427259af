"""What the time of a trace's steps went into, and which steps can be chosen."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.options.command import given_in
from runner.training.metrics.profile import Interval, Shares, read_shares, shares
from runner.training.settings import shared_in

TIMES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: (min(ends), max(ends))), max_size=5)


@given(TIMES, TIMES, TIMES, TIMES)
def test_shares_are_those_of_each_moment(
    steps: list[Interval], compute: list[Interval], communication: list[Interval], calls: list[Interval]
) -> None:
    def holds(intervals: list[Interval], moment: int) -> bool:
        return any(start <= moment < end for start, end in intervals)

    found = shares(steps, compute, communication, calls)
    counted = {"compute": 0, "exposed": 0, "idle": 0}
    for moment in filter(lambda moment: holds(steps, moment), range(20)):
        computes = holds(compute, moment) and not holds(calls, moment)
        communicates = holds(communication, moment) or holds(calls, moment)
        counted["compute" if computes else "exposed" if communicates else "idle"] += 1
    assert found == Shares(**counted)


Event = tuple[str, str, float, float]  # category, name, from, to


def trace(path: Path, *events: Event, elsewhere: Sequence[Event] = ()) -> Path:
    """A trace of a thread's events, and another's; with marks of other kinds, as torch writes them."""
    others: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}, {"ph": "s", "name": "fwdbwd", "ts": 1}]
    written = [
        {"ph": "X", "cat": cat, "name": name, "tid": thread, "ts": start, "dur": end - start}
        for thread, of_thread in enumerate((events, elsewhere))
        for cat, name, start, end in of_thread
    ]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": others + written}).encode()))
    return path


STEP = ("user_annotation", "ProfilerStep#10", 0, 100)


def test_on_a_gpu_its_kernels_count(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "trace",
        STEP,
        ("cpu_op", "aten::mm", 0, 100),
        ("user_annotation", "nccl:all_reduce", 0, 90),
        ("gpu_user_annotation", "nccl:all_reduce", 10, 60),
        ("kernel", "sm90_xmma_gemm", 10, 30),
        ("gpu_memcpy", "Memcpy HtoD", 30, 35),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 60),
        ("kernel", "after the steps", 100, 150),
    )
    assert read_shares(path, on_gpu=True) == Shares(compute=25, exposed=25, idle=50)
    by_host = ("user_annotation", "gloo:all_reduce", 20, 80)
    path = trace(tmp_path / "trace", STEP, ("kernel", "gemm", 0, 30), by_host)
    assert read_shares(path, on_gpu=True) == Shares(compute=30, exposed=50, idle=20)


def test_on_a_processor_torchs_operators_count(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "trace",
        STEP,
        ("user_annotation", "Optimizer.step#AdamW.step", 0, 100),
        ("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 0, 60),  # its hooks may wait
        ("cpu_op", "aten::mm", 0, 30),
        ("cpu_op", "c10d::allreduce_", 30, 32),
        elsewhere=[("user_annotation", "gloo:all_reduce", 25, 50), ("cpu_op", "aten::copy_", 40, 50)],
    )
    assert read_shares(path, on_gpu=False) == Shares(compute=30, exposed=20, idle=50)
    waits = ("cpu_op", "_c10d_functional::wait_tensor", 10, 50)
    path = trace(tmp_path / "trace", STEP, ("cpu_op", "aten::mm", 0, 100), waits)
    assert read_shares(path, on_gpu=False) == Shares(compute=60, exposed=40, idle=0)


def chosen(text: str) -> tuple[int, int]:
    found: tuple[int, int] = shared_in(given_in(["--profile", text]), "profile")["profile"]
    return found


@pytest.mark.parametrize(("text", "steps"), [("10-12", (10, 12)), ("1", (1, 1)), ("7-7", (7, 7))])
def test_steps_are_chosen_by_their_numbers(text: str, steps: tuple[int, int]) -> None:
    assert chosen(text) == steps


@pytest.mark.parametrize("text", ["0", "0-3", "12-10", "3-", "1-2-3", "1.5", "x", "", "-"])
def test_what_is_not_a_range_of_steps_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"--profile: .* is neither a step \(10\) nor the first and the last of several"
    ):
        chosen(text)
