"""Scaling studies: the curve, the rows, and what is written of them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.measuring.measured_run import StepsSeen
from runner.tools.costs.fit import Point, fit
from runner.tools.costs.study import STRONG, WEAK, Size, Study, read_study
from runner.tools.scale.jobs import collect
from runner.tools.scale.rows import judge, planned, take
from runner.tools.scale.tables import latex, write_csv
from tests.launching import RUNNER, mpirun_path, ok, run


def seconds(c: float, a: float, b: float, ranks: int, *, weak: bool) -> float:
    """Of a step, by the law that is fitted."""
    return (c if weak else c / ranks) + (a + b * ranks if ranks > 1 else 0.0)


_COSTS = st.tuples(st.floats(0.05, 5), st.floats(0, 0.05), st.floats(0, 0.01))


@given(_COSTS, st.booleans())
def test_known_costs_are_found_again(costs: tuple[float, float, float], weak: bool) -> None:
    points = [Point(ranks=n, seconds=seconds(*costs, n, weak=weak)) for n in (1, 2, 4, 8)]
    found = fit(points, weak=weak)
    assert found is not None
    assert found.c == pytest.approx(costs[0], rel=1e-3, abs=1e-6)
    for n in (1, 3, 64):
        assert found.seconds(n) == pytest.approx(seconds(*costs, n, weak=weak), rel=1e-2)
        low, high = found.interval(n)
        assert low <= found.seconds(n) <= high


@given(
    st.lists(st.tuples(st.integers(1, 512), st.floats(1e-4, 10)), min_size=2, max_size=6, unique_by=lambda one: one[0])
)
def test_no_cost_is_negative_whatever_was_measured(sizes: list[tuple[int, float]]) -> None:
    found = fit([Point(ranks=ranks, seconds=time) for ranks, time in sizes], weak=False)
    assert found is not None
    assert min(found.c, found.a, found.b) >= 0
    assert all(found.seconds(ranks) > 0 for ranks in (1, 2, 1024))


def test_one_size_is_no_curve_and_each_is_predicted_from_three_others() -> None:
    assert fit([Point(ranks=2, seconds=1.0)], weak=True) is None
    three = [Point(ranks=n, seconds=seconds(1, 0.1, 0.01, n, weak=False)) for n in (1, 2, 4)]
    found = fit(three, weak=False)
    assert found is not None
    assert found.errors == ()
    found = fit([*three, Point(ranks=8, seconds=1.0)], weak=False)
    assert found is not None
    assert dict(found.errors)[8] < -0.5


def study() -> Study:
    """Of ideal strong scaling, of weak scaling with a tenth lost, and of a size that failed."""
    sizes = [Size(scaling=STRONG, ranks=n, hosts=1, batch=64, rounds=[1 / n, 1.02 / n]) for n in (2, 4)]
    sizes += [
        Size(scaling=WEAK, ranks=n, batch=32 * n, rounds=[0.5 if n == 1 else 0.5 / 0.9], memory=2**20) for n in (1, 2)
    ]
    return Study(target="train.py", sizes=[*sizes, Size(scaling=WEAK, ranks=8, problem="rank 3 failed")])


def test_speed_up_and_efficiency_are_over_the_smallest_size() -> None:
    one = study()
    strong, weak = one.measured(STRONG), one.measured(WEAK)
    assert [one.speed_up(size) for size in strong] == pytest.approx([1, 2])
    assert [one.efficiency(size) for size in strong] == pytest.approx([1, 1])
    assert [one.efficiency(size) for size in weak] == pytest.approx([1, 0.9])
    assert one.speed_up(weak[1]) == pytest.approx(1.8)
    assert strong[0].uncertainty == pytest.approx(12.706 * 0.01 / 2**0.5 / 2**0.5, rel=0.5)


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    study().write(tmp_path / "study.json")
    assert read_study(tmp_path / "study.json") == study()
    for text, what in (
        ("{}", "is no study"),
        ("no", "is no study"),
        ('{"format": 1, "target": "x", "sizes": [{"scaling": "weak", "ranks": 2, "rounds": 1.0}]}', "is no study"),
        ('{"format": 1, "target": "x", "sizes": [{"scaling": "weak", "ranks": 2, "rounds": ["a"]}]}', "is no study"),
        ('{"format": 1, "target": "x", "sizes": [{"scaling": "weak", "ranks": 2, "rounds": [0.0]}]}', "is no study"),
        ('{"format": 9, "target": "x", "sizes": []}', "has format 9"),
    ):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(UsageError, match=what):
            read_study(tmp_path / "other.json")
    with pytest.raises(UsageError, match="No such file"):
        read_study(tmp_path / "missing.json")


def test_tables_have_the_rows_that_were_measured(tmp_path: Path) -> None:
    write_csv(study(), tmp_path / "study.csv")
    with (tmp_path / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["scaling"], int(row["ranks"]), float(row["efficiency"])) for row in rows]
    assert found == [(STRONG, 2, 1.0), (STRONG, 4, 1.0), (WEAK, 1, 1.0), (WEAK, 2, pytest.approx(0.9))]
    assert [row["compute_ms"] for row in rows] == [""] * 4
    text = latex(study())
    lines = [line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(lines) == 5
    (columns,) = re.findall(r"begin\{tabular\}\{(r+)\}", text)
    assert {line.count("&") for line in lines} == {len(columns) - 1}
    assert re.search(r"^2 & .*1\.80 & 90 \\%", text, re.MULTILINE)


def test_rows_of_a_workload_say_its_batch_and_what_does_not_fit() -> None:
    rows = planned(["workloads.mnist"], [], [1, 2, 3], scaling="both", batch_size=None, global_batch_size=64)
    assert [(size.scaling, size.ranks, size.batch, bool(size.problem)) for size, _ in rows] == [
        (STRONG, 1, 64, False),
        (STRONG, 2, 64, False),
        (STRONG, 3, 64, True),
        (WEAK, 1, 32, False),
        (WEAK, 2, 64, False),
        (WEAK, 3, 96, False),
    ]
    assert "--global-batch-size=64" in rows[1][1]
    layout = planned(["workloads.mnist"], ["--tp", "2"], [1, 4], scaling=WEAK, batch_size=8, global_batch_size=None)
    assert [(size.batch, bool(size.problem)) for size, _ in layout] == [(8, True), (16, False)]


def test_a_script_has_its_own_batch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    name = str(tmp_path / "train.py")
    (one,) = planned([name], ["--lr", "1"], [4], scaling="both", batch_size=16, global_batch_size=None)
    assert (one[0].scaling, one[0].batch, one[1]) == (WEAK, 64, (name, "--lr", "1"))
    with pytest.raises(UsageError, match="only weak scaling"):
        planned([name], [], [4], scaling=STRONG, batch_size=16, global_batch_size=None)


def rank(number: int, times: list[float], **more: Any) -> StepsSeen:
    return StepsSeen(
        rank=number, host="a", local_rank=number, device="cpu", seconds=times, waiting=[0.0] * len(times), **more
    )


def test_a_round_is_the_median_of_the_slowest_ranks_steps() -> None:
    size = Size(scaling=WEAK, ranks=2)
    for seconds in ([1, 1, 3], [2, 2, 3]):
        take(size, [rank(0, seconds, compute=2.0, exposed=1.0), rank(1, [2, 2, 2], compute=1.0, exposed=2.0)])
    assert size.rounds == [2, 2]
    assert (size.compute, size.exposed, size.imbalance) == (1.5, 1.5, 0.5)
    assert size.warnings == []
    take(size, [rank(0, [1, 1, 1, 10])])
    assert "some steps take much longer" in " ".join(size.warnings)
    empty = Size(scaling=WEAK, ranks=1)
    take(empty, [rank(0, [])])
    assert "before its steps were timed" in empty.problem


def test_what_speaks_against_a_row_is_said_in_it() -> None:
    sizes = [Size(scaling=WEAK, ranks=n, hosts=1, rounds=[1.0, 1.5], others=1.0 * (n == 2)) for n in (2, 8)]
    judge(sizes, cores=4)
    assert [len(size.warnings) for size in sizes] == [2, 2]
    assert "8 ranks on 4 cores" in " ".join(sizes[1].warnings)


def job_folder(folder: Path, rows: Sequence[tuple[int, str]]) -> None:
    """That of a study by jobs, of which each has been answered so."""
    entries = [
        {"folder": f"weak-0000{n}", "nodes": n, "answer": answer, "size": {"scaling": WEAK, "ranks": n}}
        for n, answer in rows
    ]
    content = {
        "target": "x",
        "command": "x",
        "rows": entries,
        "problems": [{"scaling": WEAK, "ranks": 9, "problem": "no"}],
    }
    (folder / "manifest.json").write_text(json.dumps(content))


def test_what_jobs_have_left_is_put_together_and_one_that_is_missing_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no study"):
        collect(tmp_path)
    job_folder(tmp_path, [(1, "job 1"), (5, "job 5"), (2, "job 2"), (3, "job 3"), (4, "job 4")])
    for number, seconds in (("1", 0.5), ("2", 0.7)):
        run = tmp_path / "weak-00001" / f"round-{number}"
        run.mkdir(parents=True)
        rank(0, [seconds] * 10).write(run)
        (run / "facts.json").write_text(
            '{"hosts": 1, "cores": 8, "device": "cpu", "versions": "torch 2", "when": "now"}'
        )
    for number in (1, 2):
        run = tmp_path / "weak-00005" / f"round-{number}"
        run.mkdir(parents=True)
        (run / "facts.json").write_text('{"hosts": 1, "cores": 8}')
        for one in range(5 if number == 1 else 3):
            rank(one, [1.0] * 4).write(run)
    (tmp_path / "weak-00005.out").write_text("epoch 1\nKilled\n")
    (tmp_path / "weak-00002.out").write_text("a\nrunner: rank 1 of 2 on host b failed: ValueError: x\n")
    (tmp_path / "weak-00003.out").write_text(
        "slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2026-01-01 DUE TO TIME LIMIT ***\n"
    )
    found = collect(tmp_path)
    first, second, third, fourth, fifth, ninth = found.sizes
    assert first.rounds == [0.5, 0.7]
    assert found.facts["cores"] == 8
    assert second.problem.endswith("its job says: rank 1 of 2 on host b failed: ValueError: x")
    assert third.problem == "its job says: CANCELLED AT 2026-01-01 DUE TO TIME LIMIT"
    assert fourth.problem == "its job has not begun, or was cancelled before (job 4)"
    assert (fifth.rounds, fifth.problem) == ([1.0], "1 of 2 rounds are done; its job says: Killed")
    assert ninth.problem == "no"


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "lsf"])
def test_a_job_runs_each_round_and_one_batch_and_goes_by_what_is_asked_for(scheduler: str, tmp_path: Path) -> None:
    words = ["--nodes", "1,2", "--ranks-per-node", "4", "--rounds", "2", "--scaling", "weak", "--account", "p-1"]
    target = ["--batch-size", "16", "train.py", "--batch-size", "16"]
    (tmp_path / "train.py").write_text("import torch\n")
    mpirun = {"MPIRUN": mpirun_path()}
    done = ok(run(*RUNNER, "scale", "--scheduler", scheduler, *words, *target, cwd=tmp_path, **mpirun))
    assert "scale --collect scale" in done.stdout
    for ranks in (4, 8):
        text = (tmp_path / "scale" / f"weak-0000{ranks}.sh").read_text()
        calls = [line for line in text.splitlines() if line.startswith("run --measure=")]
        assert [re.findall(r"/([\w-]+) train.py --batch-size 16 \|\|", line) for line in calls] == [
            ["round-1"],
            ["round-2"],
            ["one-batch"],
        ]
        assert "p-1" in text
        assert not re.search(r"^\s*exec ", text, re.MULTILINE)
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    refused_again = run(*RUNNER, "scale", "--scheduler", scheduler, *words, *target, cwd=tmp_path, **mpirun)
    assert refused_again.returncode == 2
    assert "scale has a study" in refused_again.stderr
