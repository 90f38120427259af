"""Scaling studies: the curve, the rows, and what is written of them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.tools.scale.fit import fit_of
from runner.tools.scale.results import latex, write_csv
from runner.tools.scale.study import STRONG, WEAK, Size, Study, read_study


def seconds(c: float, a: float, b: float, ranks: int, *, weak: bool) -> float:
    """Return a step's time by the law that is fitted."""
    return (c if weak else c / ranks) + (a + b * ranks if ranks > 1 else 0.0)


_COSTS = st.tuples(st.floats(0.05, 5), st.floats(0, 0.05), st.floats(0, 0.01))


@given(_COSTS, st.booleans())
def test_known_costs_are_found_again(costs: tuple[float, float, float], weak: bool) -> None:
    points = [Size(ranks=n, rounds=[seconds(*costs, n, weak=weak)]) for n in (1, 2, 4, 8)]
    found = fit_of(points, weak=weak)
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
    found = fit_of([Size(ranks=ranks, rounds=[time]) for ranks, time in sizes], weak=False)
    assert found is not None
    assert min(found.c, found.a, found.b) >= 0
    assert all(found.seconds(ranks) > 0 for ranks in (1, 2, 1024))


def test_one_size_is_no_curve_and_each_is_predicted_from_three_others() -> None:
    assert fit_of([Size(ranks=2, rounds=[1.0])], weak=True) is None
    three = [Size(ranks=n, rounds=[seconds(1, 0.1, 0.01, n, weak=False)]) for n in (1, 2, 4)]
    found = fit_of(three, weak=False)
    assert found is not None
    assert found.errors == ()
    found = fit_of([*three, Size(ranks=8, rounds=[1.0])], weak=False)
    assert found is not None
    assert dict(found.errors)[8] < -0.5


def weak() -> Study:
    """Return a study of weak scaling with a tenth lost, and of a size that failed."""
    sizes = [Size(ranks=n, hosts=1, batch=32 * n, rounds=[0.5 if n == 1 else 0.5 / 0.9]) for n in (1, 2)]
    return Study(target="train.py", sizes=[*sizes, Size(ranks=8, problem="rank 3 failed")])


def test_speed_up_and_efficiency_are_over_the_smallest_size() -> None:
    sizes = [Size(ranks=n, batch=64, rounds=[0.9 / n, 1 / n, 1.2 / n]) for n in (2, 4)]
    strong = Study(target="train.py", sizes=sizes)
    assert (strong.scaling, weak().scaling) == (STRONG, WEAK)
    assert [strong.speed_up(size) for size in sizes] == pytest.approx([1, 2])
    assert [strong.efficiency(size) for size in sizes] == pytest.approx([1, 1])
    assert [weak().efficiency(size) for size in weak().measured] == pytest.approx([1, 0.9])
    assert weak().speed_up(weak().measured[1]) == pytest.approx(1.8)
    assert sizes[0].spread == pytest.approx(0.2)
    without_batch = Study(
        target="train.py", sizes=[Size(ranks=n, rounds=[0.5]) for n in (1, 4)]
    )  # each rank has its own
    assert (without_batch.scaling, without_batch.speed_up(without_batch.sizes[1])) == (WEAK, pytest.approx(4))


def test_a_study_is_read_as_it_was_written(tmp_path: Path) -> None:
    weak().write(tmp_path / "study.json")
    assert read_study(tmp_path / "study.json") == weak()
    for text, what in (
        ("no", "is no study"),
        ('{"format": 2, "target": "x", "sizes": [{"ranks": 2, "rounds": [0.0]}]}', "is no study"),
        ('{"format": 1, "target": "x", "sizes": []}', "has format 1"),
    ):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(UsageError, match=what):
            read_study(tmp_path / "other.json")
    with pytest.raises(UsageError, match="No such file"):
        read_study(tmp_path / "missing.json")


def test_tables_have_the_rows_that_were_measured(tmp_path: Path) -> None:
    write_csv(weak(), tmp_path / "study.csv")
    with (tmp_path / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["ranks"]), float(row["efficiency"])) for row in rows] == [(1, 1.0), (2, pytest.approx(0.9))]
    lines = [line for line in latex(weak()).splitlines() if line.endswith(r"\\")]
    (columns,) = re.findall(r"begin\{tabular\}\{(r+)\}", latex(weak()))
    assert {line.count("&") for line in lines} == {len(columns) - 1}
    assert re.search(r"^2 & .*1\.80 & 90 \\%", lines[2])
