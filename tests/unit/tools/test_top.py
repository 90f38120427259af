"""Verdicts of ``top`` on the ranks' states, and how they are shown in 80 columns."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from runner.guard.report.rank_state import RankState, read_states
from runner.tools.tables.table import Column, fitting
from runner.tools.top.verdicts import Overview, judge, overview
from runner.tools.top.view import head, table

NOW = 1_763_841_600.0


def state(rank: int, size: int = 4, **other: Any) -> RankState:
    """A rank that trains well, but for what is given."""
    where = {"host": f"node{rank // 2}", "phase": "training", "step": 120, "steps": 600, "epoch": 1, "epochs": 3}
    times = {"time": NOW - 1, "started": NOW - 600, "interval": 2.0, "step_seconds": 0.5, "progress": NOW - 1.4}
    other = {"loss": 0.31, "cpu": 173.0, "memory": 812_345_678, "exit_code": None, "what": ""} | other
    return RankState(rank=rank, size=size, **(where | times | other))


def job(*others: RankState, size: int = 4) -> list[RankState]:
    """The states of a job, in which these are other than the rest."""
    return list(({rank: state(rank, size) for rank in range(size)} | {one.rank: one for one in others}).values())


def statuses(states: list[RankState]) -> list[tuple[int, str]]:
    return [(one.rank, one.status) for one in judge(states, NOW)]


def drawn(states: list[RankState], width: int, rows: int | None = None) -> list[str]:
    """The lines on a terminal."""
    out = Console(file=io.StringIO(), width=width)
    verdicts = judge(states, NOW)
    shown = overview(verdicts, NOW)
    out.print(*head(verdicts, shown, "runs/x"), table(verdicts, shown, width, rows)[0], sep="\n")
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({}, "running", ""),
        ({"phase": None, "step": None, "step_seconds": None, "progress": None}, "running", ""),
        ({"phase": "ended", "exit_code": 0, "time": NOW - 500}, "ended", ""),
        ({"exit_code": 137, "what": "killed by SIGKILL"}, "failed", "killed by SIGKILL (exit code 137)"),
        ({"phase": "ended", "what": "its host is gone"}, "failed", "its host is gone"),
        ({"time": NOW - 9.9}, "running", ""),
        ({"time": NOW + 40, "progress": NOW + 39}, "running", ""),  # the clock of its host is ahead
        ({"time": NOW - 10.1}, "missing", "it has not written its state for 10 s"),
        ({"time": NOW - 59, "interval": 20.0}, "running", ""),
        ({"time": NOW - 61, "interval": 20.0}, "missing", "it has not written its state for 61 s"),
        # of an earlier job in this folder
        ({"phase": "ended", "exit_code": 1, "time": NOW - 700}, "missing", "it has not written its state"),
        ({"progress": NOW - 30.9}, "running", ""),
        ({"progress": NOW - 31.1}, "stuck", "no progress for 30 s, training, step 120"),
        ({"step_seconds": 0.65}, "running", ""),
        ({"step_seconds": 1.0, "what": "throttled"}, "slow", "a step takes 2.0 times the median: throttled"),
    ],
)
def test_the_verdict_on_a_rank(changes: dict[str, Any], status: str, why: str) -> None:
    (one,) = (one for one in judge(job(state(2, **changes)), NOW) if one.rank == 2)
    assert (one.status, one.why) == (status, why)


@pytest.mark.parametrize(("idle", "status"), [(90, "running"), (102, "stuck")])
def test_long_steps_are_given_more_time(idle: float, status: str) -> None:
    states = [state(rank, step_seconds=5.0, progress=NOW - idle) for rank in range(4)]
    assert {found for _, found in statuses(states)} == {status}


def test_where_ranks_wait_for_one_another_the_own_part_of_a_step_counts() -> None:
    late = [state(rank, 4, own_seconds=0.2 if rank == 2 else 0.05) for rank in range(4)]
    first = judge(late, NOW)[0]
    assert (first.rank, first.status) == (2, "slow")
    assert first.why == "it takes 4.0 times the median before it exchanges anything"
    little = [state(rank, 4, own_seconds=0.09 if rank == 2 else 0.05) for rank in range(4)]
    assert {status for _, status in statuses(little)} == {"running"}


def test_the_ranks_of_a_job_without_a_file_and_with_files_of_a_larger_job_that_was_here_before() -> None:
    assert statuses([state(1, 3)]) == [(0, "missing"), (2, "missing"), (1, "running")]
    old = [state(rank, 8, time=NOW - 4000, started=NOW - 5000) for rank in range(8)]
    assert statuses([*old[2:], state(0, 2), state(1, 2, step_seconds=0.8)]) == [(1, "slow"), (0, "running")]


def test_who_stands_first() -> None:
    states = job(
        *(state(3, 8, step_seconds=0.9), state(4, 8, step_seconds=1.5), state(2, 8, phase="ended", exit_code=0)),
        *(state(5, 8, progress=NOW - 99), state(6, 8, progress=NOW - 90, step=119), state(7, 8, time=NOW - 60)),
        *(state(0, 8, exit_code=1, time=NOW - 4), state(1, 8, exit_code=134, time=NOW - 5)),
        size=8,
    )
    told = [f"{rank} {status}" for rank, status in statuses(states)]
    assert told == ["1 failed", "0 failed", "7 missing", "6 stuck", "5 stuck", "4 slow", "3 slow", "2 ended"]


def overview_of(states: list[RankState]) -> Overview:
    return overview(judge(states, NOW), NOW)


def test_the_job() -> None:
    shown = overview_of(job(state(3, step=118, loss=9.0)))
    assert (shown.size, shown.hosts, shown.seconds) == (4, ["node0", "node1"], 600)
    assert (shown.step, shown.steps, shown.epoch, shown.epochs, shown.loss) == (118, 600, 1, 3, 0.31)
    assert (shown.steps_per_second, shown.seconds_left, shown.counts) == (2.0, 241.0, {"running": 4})


@pytest.mark.parametrize("changes", [{"exit_code": 1}, {"time": NOW - 60}, {"progress": NOW - 60}])
def test_a_job_that_stands_has_no_rate_and_no_time_left(changes: dict[str, Any]) -> None:
    shown = overview_of(job(state(3, **changes)))
    assert (shown.steps_per_second, shown.seconds_left) == (None, None)


def test_a_job_that_has_ended_no_longer_takes_time() -> None:
    ended = [state(rank, phase="ended", exit_code=0, step=600, time=NOW - 300) for rank in range(4)]
    shown = overview_of(ended)
    assert (shown.seconds, shown.step, shown.steps_per_second, shown.counts) == (300, 600, None, {"ended": 4})


def test_states_are_read_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    text = '{"size": 4, "step": 7, "loss": NaN, "what": "a\\nb", "new": 1}'
    (folder / "rank-00000.json").write_text(text)
    (folder / "rank-00001.json").write_text('{"size": 4, "ti')
    (folder / "rank-00002.json").write_text("[]")
    (folder / "rank-00003.json.part").write_text("")
    os.utime(folder / "rank-00000.json", (NOW, NOW))
    first, second, third = read_states(tmp_path)
    assert (first.rank, first.size, first.step, first.what, first.cpu, first.time) == (0, 4, 7, "a b", None, NOW)
    assert str(second.what).startswith("rank-00001.json cannot be read: ")
    assert [(one.rank, one.status, one.why) for one in judge([first, second, third], NOW)] == [
        (1, "missing", second.what),
        (2, "missing", "rank-00002.json cannot be read: it is not a JSON object"),
        (3, "missing", "it has not written its state"),
        (0, "running", "a b"),
    ]


def test_a_state_that_a_later_runner_has_written_is_said_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "rank-00000.json").write_text('{"format": 2, "step": 7}')
    (found,) = read_states(tmp_path)
    told = "rank-00000.json cannot be read: it is of format 2, and this runner reads 1; update the runner"
    assert (found.step, found.what) == (None, told)


def test_what_is_drawn_for_four_ranks() -> None:
    lines = drawn(job(state(2, exit_code=137, what="killed by [SIGKILL]", progress=None)), 80)
    assert [line.rstrip() for line in lines] == [
        "4 ranks on 2 hosts for 0:10:00, runs/x",
        "epoch 1/3  step 120/600  loss 0.31",
        "failed: rank 2 on node1: killed by [SIGKILL] (exit code 137)",
        "                             ms per            last  CPU  mem.",
        "rank  host   state     step    step  loss  progress    %   GiB",
        "   2  node1  exit 137   120     500  0.31            173   0.8",
        "   0  node0  training   120     500  0.31       0 s  173   0.8",
        "   1  node0  training   120     500  0.31       0 s  173   0.8",
        "   3  node1  training   120     500  0.31       0 s  173   0.8",
    ]
    assert drawn(job(state(2, exit_code=137, what="killed")), 200)[5].endswith("killed (exit code 137)")
    assert drawn([], 80)[0] == "no rank has written its state in runs/x yet"


def test_rows_fit_a_terminal() -> None:
    states = [state(rank, 64, gpu=97.0, host=f"gpu-node-{rank:04}.cluster.example") for rank in range(64)]
    lines = drawn(states, 80, 10)
    assert [int(line.split()[0]) for line in lines[4:]] == list(range(10))
    assert "gpu-node-0000  " in lines[4]


def test_columns_are_left_out_by_their_number() -> None:
    columns = [
        Column(title=title, cells=["1234"], spared=spared) for title, spared in (("a", 0), ("b\nc", 2), ("d", 1))
    ]
    titles = {width: [column.title for column in fitting(columns, width)[0]] for width in (16, 15, 10, 9, 1)}
    assert titles == {16: ["a", "b\nc", "d"], 15: ["a", "d"], 10: ["a", "d"], 9: ["a"], 1: ["a"]}
    assert fitting(columns, 9)[1] == ["b c", "d"]
