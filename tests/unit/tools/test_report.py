"""The page about a run: what it shows of the files that exist, however few, broken or odd they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.tools.report.folder import read_run
from runner.tools.report.page import page_of
from tests.html_page import Page

NOW = 1_763_841_600.0
ODD = "<script>alert('1')</script> & \"more\" $x$"


def page(*folders: Path) -> Page:
    return Page(page_of([read_run(folder) for folder in folders], NOW))


def leave_lines(path: Path, *lines: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def leave_metrics(folder: Path, steps: int = 20, **more: Any) -> None:
    lines = [
        {"format": 1, "step": step, "epoch": 1, "loss": 1 / step, "lr": 0.1, "samples_per_s": 100.0, "val_loss": None}
        for step in range(1, steps + 1)
    ]
    lines[-1] |= {"val_loss": 0.5, "val_accuracy": 0.75}
    leave_lines(folder / "metrics.jsonl", *(line | more for line in lines))


def leave_ranks(
    folder: Path, ranks: int = 4, *, late: int | None = None, began: float = NOW - 100, **state: Any
) -> None:
    """States of ranks on two hosts, and their histories of ten samples."""
    for rank in range(ranks):
        own = {"rank": rank, "size": ranks, "host": f"node{2 * rank // ranks}", "time": began + 20, "interval": 2.0}
        own |= {"step": 10, "phase": "ended", "exit_code": 0} | state
        leave_lines(folder / "state" / f"rank-{rank:05d}.json", own)
        numbers = {"step_seconds": 0.4, "data_seconds": 0.05, "own_seconds": 0.3 if rank == late else 0.1}
        numbers |= {"cpu": 50.0, "memory": 1 << 30}
        lines = [{"time": began + 2 * n, "phase": "training", "step": n} | numbers for n in range(10)]
        leave_lines(folder / "state" / f"rank-{rank:05d}.jsonl", *lines)


def leave_failure(folder: Path, name: str = "failure.json", **more: Any) -> None:
    failure = {"rank": 1, "host": "node0", "exit_code": 1, "what": "ValueError: odd", "step": 7, "time": NOW - 90}
    leave_lines(folder / name, failure | {"traceback": "Traceback"} | more)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run with everything that a page shows."""
    folder = tmp_path / "whole"
    leave_metrics(folder)
    leave_ranks(folder, late=2)
    leave_failure(folder, "failure-1.json")
    leave_lines(folder / "step-20" / "checkpoint.json", {})
    (folder / "settings.toml").write_text('format = 1\n\n# training\nlr = 0.1\n# seed = 0\nstrategy = "fsdp"\n')
    facts = {"command": ["python", "-m", "runner", "train me.py"], "versions": {"torch": "2.9.0"}, "size": 4}
    leave_lines(folder / "run.json", facts)
    return folder


def test_the_sections_figures_and_tables_of_a_run(whole: Path) -> None:
    found = page(whole)
    sections = ["training", "throughput", "parts", "ranks", "checkpoints", "failures", "settings", "origin"]
    assert [*found.sections] == sections
    assert [f"#{name}" for name in sections] == [link for link in found.links if link[1:] in sections]
    assert found.figures == [
        *("loss", "accuracy of the evaluation", "learning rate"),
        *("samples/s, all ranks", "ms per step, mean of the ranks"),
        *("ms of a step, mean of the ranks", "how late each rank is"),
    ]
    assert "trainingevaluation" in "".join(found.sections["training"].split())  # the two curves of the loss
    assert ["steps", "20"] in found.rows
    assert ["restarts", "1"] in found.rows
    (latest,) = [row for row in found.rows if row[:2] == ["2", "node1"]]
    assert latest[2:] == ["50 %", "400", "300", "50", "0.5", "1.1 GB", "n/a", "n/a"]
    assert ["1", "ValueError: odd", "all ranks started again", "7", "1", "node0"] in [row[:6] for row in found.rows]
    assert ["step-20", "3 B"] in [row[:2] for row in found.rows]
    assert [row for row in found.rows if row[0] in ("lr", "seed")] == [["lr", "0.1"], ["seed", "0"]]
    assert ["command", "python -m runner 'train me.py'"] in found.rows
    assert ["torch", "2.9.0"] in found.rows
    assert "Traceback" in found.sections["failures"]


def test_the_page_loads_nothing_and_the_same_run_gives_the_same_page(whole: Path) -> None:
    found = page(whole)
    assert "script" not in found.tags
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert page_of([read_run(whole)], NOW) == page_of([read_run(whole)], NOW)


def test_text_of_a_run_is_no_markup(whole: Path) -> None:
    leave_failure(whole, what=ODD, host=ODD, traceback=ODD)
    leave_metrics(whole, **{ODD: 1.0})
    leave_ranks(whole, host=ODD, what=ODD, exit_code=1)
    (whole / "settings.toml").write_text(f"name = '{ODD}'\n")
    leave_lines(whole / "run.json", {"command": [ODD], "launcher": ODD, "devices": {ODD: ODD}, "size": ODD})
    found = page(whole, whole)
    assert "script" not in found.tags
    assert ODD in found.figures
    assert ODD in found.sections["failures"]
    assert ODD in [row[1] for row in found.rows if row[0] == "2"]


def test_curves_of_several_runs_lie_over_one_another(whole: Path, tmp_path: Path) -> None:
    for name in ("_other", "third"):
        leave_metrics(tmp_path / name)
        (tmp_path / name / "settings.toml").write_text("lr = 0.2\n# seed = 0\n")
    found = page(whole, tmp_path / "_other", tmp_path / "third")
    assert found.figures.count("loss") == 1
    for run in ("whole", "_other", "third"):
        assert f"{tmp_path.name}/{run}, evaluation" in found.sections["training"]
    assert ["lr", "0.1", "0.2", "0.2"] in found.rows
    assert ["restarts", "1", "n/a", "n/a"] in found.rows


def test_a_line_that_is_cut_off_or_odd_is_left_out(whole: Path) -> None:
    before = page(whole)
    odd = '7\nnull\n{"step": "a", "time": NaN}\n{"step": 21, "loss": NaN, "time": 1e999}\n\xff{"st\n{"step": 22, "lo'
    for path in (whole / "metrics.jsonl", whole / "state" / "rank-00000.jsonl"):
        with open(path, "a") as file:
            file.write(odd)
    assert page(whole).rows == before.rows


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ({}, "done"),
        ({"exit_code": 75}, "saved"),
        ({"exit_code": 137, "what": "killed"}, "failed"),
        ({"exit_code": None, "phase": "training", "time": NOW - 3}, "running"),
        ({"exit_code": None, "phase": "training", "time": NOW - 60}, "silent"),
    ],
)
def test_how_a_run_ended_or_that_it_goes(tmp_path: Path, state: dict[str, Any], status: str) -> None:
    leave_ranks(tmp_path, **state)
    assert read_run(tmp_path).status(NOW)[0] == status
    assert f'<b class="{status}">' in page_of([read_run(tmp_path)], NOW)


def test_one_of_a_runs_two_folders_leads_to_the_other(tmp_path: Path) -> None:
    log, checkpoints = tmp_path / "log", tmp_path / "checkpoints"
    leave_ranks(log)
    leave_metrics(checkpoints)
    for folder in (log, checkpoints):
        leave_lines(folder / "run.json", {"log_dir": str(log), "checkpoints": str(checkpoints)})
    for folder in (log, checkpoints):
        assert (len(read_run(folder).states), "loss" in read_run(folder).metrics) == (4, True)
    # Another run has taken the place of this one's checkpoints.
    leave_lines(checkpoints / "run.json", {"log_dir": None, "checkpoints": str(checkpoints)})
    assert "loss" not in read_run(log).metrics
    assert read_run(checkpoints).states == []


def test_supervised_starts_are_one_run(tmp_path: Path) -> None:
    leave_ranks(tmp_path / "attempt-2", began=NOW - 1000)
    leave_ranks(tmp_path / "attempt-10", began=NOW - 100, ranks=2)
    leave_failure(tmp_path / "attempt-2")
    failed = {"number": 2, "code": 1, "rank": 1, "host": "node0", "what": "odd", "next": "started again"}
    leave_lines(tmp_path / "attempts.jsonl", failed, {"number": 10, "code": 0})
    run = read_run(tmp_path)
    assert len(run.states) == 2
    assert ["2", "odd", "1", "node0", "started again", "1"] in [row[:6] for row in page(tmp_path).rows]
    assert run.times is not None
    is_known = np.isfinite(run.times.lateness())
    assert run.times.ranks == [0, 1, 2, 3]
    assert (is_known[0, 0], is_known[0, 5], is_known[0, -1]) == (True, False, True)  # nothing between the two
    assert (is_known[3, 0], is_known[3, -1]) == (True, False)


def test_the_time_of_a_step_has_three_parts(tmp_path: Path) -> None:
    leave_ranks(tmp_path)
    times = read_run(tmp_path).times
    assert times is not None
    assert [part[5] for part in times.parts_of_step().values()] == pytest.approx([50, 50, 300])


def test_a_rank_that_saves_for_a_moment_trains_and_one_without_a_step_does_not(tmp_path: Path) -> None:
    leave_ranks(tmp_path, 2, late=1)
    path = tmp_path / "state" / "rank-00000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[4]["phase"] = "saving"
    lines[7] |= {"phase": "evaluating", "step": 6}
    leave_lines(path, *lines)
    times = read_run(tmp_path).times
    assert times is not None
    late = times.lateness()
    assert late[0].tolist() == [-1 if place == 7 else 0 for place in range(10)]
    assert np.isnan(late[1, 7])  # a rank is late in comparison with another
    assert late[1, 4] == pytest.approx(0.5)


def test_a_long_run_of_many_ranks_is_a_small_page(tmp_path: Path) -> None:
    leave_metrics(tmp_path, 20_000, mfu=0.4, units_per_s=1e6, grad_norm=1.0)
    leave_ranks(tmp_path, 512, late=300)
    text = page_of([read_run(tmp_path)], NOW)
    assert len(text) < 400_000
    assert "The other 496 ranks are less late" in text


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [-3.0, -3.0], [1e-299, 1e299], [-1e299, 1e299], [5.0, 1e308]])
def test_any_numbers_make_a_figure(values: list[float], tmp_path: Path) -> None:
    leave_lines(tmp_path / "metrics.jsonl", *({"step": n, "实验": one} for n, one in enumerate(values)))
    found = page(tmp_path)
    assert found.figures == ["实验"]
    assert "path" in found.tags
    assert "$" not in found.sections["training"]  # as in the formulas by which matplotlib writes powers
