"""The page about a run: what it shows of the files that are there, however few, broken or odd they are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import UsageError
from runner.tools.run_report.folder import RunFolder, read_run
from runner.tools.run_report.over_time import grid_of, lateness, parts_of_step
from runner.tools.run_report.page import page_of
from runner.tools.run_report.pictures import MOST_POINTS, Curve, chart, number_text, thinned, time_text
from tests.html_page import Page

NOW = 1_763_841_600.0
ODD = "<script>alert('1')</script> & \"more\""


def page(*folders: Path) -> Page:
    return Page(page_of([read_run(folder) for folder in folders], NOW))


def leave_metrics(folder: Path, steps: int = 20, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            line = {
                "format": 1,
                "step": step,
                "epoch": 1,
                "loss": 1 / step,
                "lr": 0.1,
                "samples_per_s": 100.0,
                "val_loss": None,
            }
            file.write(
                json.dumps(line | more | ({"val_loss": 0.5, "val_accuracy": 0.75} if step == steps else {})) + "\n"
            )


def leave_ranks(
    folder: Path, ranks: int = 4, *, late: int | None = None, began: float = NOW - 100, **state: Any
) -> None:
    """States of ranks on two hosts, and their histories of ten samples."""
    (folder / "state").mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        own = {
            "rank": rank,
            "size": ranks,
            "host": f"node{2 * rank // ranks}",
            "time": began + 20,
            "interval": 2.0,
            "step": 10,
        }
        own |= {"phase": "ended", "exit_code": 0} | state
        (folder / "state" / f"rank-{rank:05d}.json").write_text(json.dumps(own))
        with open(folder / "state" / f"rank-{rank:05d}.jsonl", "w") as file:
            for number in range(10):
                line = {
                    "time": began + 2 * number,
                    "phase": "training",
                    "step": number,
                    "step_seconds": 0.4,
                    "data_seconds": 0.05,
                }
                line |= {
                    "own_seconds": 0.3 if rank == late else 0.1,
                    "cpu": 50.0,
                    "memory": 1 << 30,
                    "gpu_energy": 1000.0 + 200 * number,
                }
                file.write(json.dumps(line) + "\n")


def leave_failure(folder: Path, name: str = "failure.json", **more: Any) -> None:
    failure = {
        "rank": 1,
        "host": "node0",
        "exit_code": 1,
        "what": "ValueError: odd",
        "step": 7,
        "time": NOW - 90,
        "traceback": "Traceback",
    }
    (folder / name).write_text(json.dumps(failure | more))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run with everything that a page shows."""
    folder = tmp_path / "whole"
    leave_metrics(folder)
    leave_ranks(folder, late=2)
    leave_failure(folder, "failure-1.json")
    (folder / "step-20").mkdir()
    (folder / "step-20" / "checkpoint.json").write_text(json.dumps({"content": {"position": {"epoch": 1, "step": 20}}}))
    (folder / "settings.toml").write_text('format = 1\n\n# training\nlr = 0.1\n# seed = 0\nstrategy = "fsdp"\n')
    facts = {
        "command": ["python", "-m", "runner", "train me.py"],
        "versions": {"torch": "2.9.0"},
        "launcher": "Slurm",
        "size": 4,
    }
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def test_the_sections_and_pictures_of_a_run(whole: Path) -> None:
    found = page(whole)
    assert list(found.sections) == [
        *(
            "training",
            "throughput",
            "parts-of-a-step",
            "ranks",
            "hosts",
            "checkpoints",
            "restarts-and-failures",
            "settings",
        ),
        "versions-and-command",
    ]
    assert found.figures == [
        *(
            "loss",
            "accuracy of the evaluation",
            "learning rate",
            "samples/s, all ranks",
            "ms per step, mean of the ranks",
        ),
        *("ms of a step, mean of the ranks", "how late each rank is, as a share of a step"),
        *("CPU: cores in use", "memory of the ranks, GiB"),
    ]
    assert ["node1", "ranks 2-3", "1.0", "2 GiB", "n/a", "n/a", "3600 J"] in [row[:7] for row in found.rows]
    assert [row[:3] for row in found.rows if row[0] == "2"] == [["2", "node1", "50.0 %"]]
    assert ["1", "ValueError: odd", "all ranks started again", "7", "1", "node0"] in [row[:6] for row in found.rows]
    assert [row[:3] for row in found.rows if row[0] == "step-20"] == [["step-20", "20", "1"]]
    assert ["lr", "0.1"] in found.rows
    assert ["command", "python -m runner 'train me.py'"] in found.rows
    assert ["torch", "2.9.0"] in found.rows
    assert "Traceback" in found.sections["restarts-and-failures"]


def test_nothing_is_loaded_or_run(whole: Path) -> None:
    found = page(whole)
    assert "script" not in found.tags
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)


def test_text_of_a_run_is_no_markup(whole: Path) -> None:
    leave_failure(whole, what=ODD, host=ODD, traceback=ODD)
    leave_metrics(whole, **{ODD: 1.0})
    leave_ranks(whole, host=ODD, what=ODD, exit_code=1)
    (whole / "settings.toml").write_text(f"name = '{ODD}'\n")
    (whole / "run.json").write_text(json.dumps({"command": [ODD], "launcher": ODD, "devices": {ODD: ODD}, "size": ODD}))
    found = page(whole)
    assert not found.tags & {"script", "b"}
    assert ODD in found.figures
    assert ODD in found.sections["restarts-and-failures"]
    assert [ODD, "ranks 0-3"] in [row[:2] for row in found.rows]


def test_two_runs_are_in_the_same_pictures_and_tables(whole: Path, tmp_path: Path) -> None:
    leave_metrics(tmp_path / "other")
    (tmp_path / "other" / "settings.toml").write_text("lr = 0.2\n# seed = 0\n")
    found = page(whole, tmp_path / "other")
    assert found.figures.count("loss") == 1
    assert ["lr", "0.1", "0.2"] in found.rows
    assert ["restarts", "1", "n/a"] in found.rows
    assert f"{tmp_path.name}/whole: how late each rank is, as a share of a step" in found.figures


def test_a_line_that_is_cut_off_or_odd_is_left_out(whole: Path) -> None:
    for path in (whole / "metrics.jsonl", whole / "state" / "rank-00000.jsonl"):
        with open(path, "a") as file:
            file.write(
                '7\nnull\n{"step": "a", "time": NaN}\n{"step": 21, "loss": NaN, "time": 1e999}\n\xff{"st\n{"step": 22, "lo'
            )
    assert [len(points) for name, points in read_run(whole).metrics.items() if name == "loss"] == [20]
    assert page(whole).figures == page(whole).figures
    assert len(read_run(whole).histories[0]) == 10


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"rank": null, "what": 7, "time": "a"}', '{"what"', '{"content": 3}']
)
def test_files_without_what_they_should_have(whole: Path, content: str) -> None:
    for path in (
        *whole.glob("*.json"),
        *whole.glob("state/*"),
        whole / "step-20" / "checkpoint.json",
        whole / "settings.toml",
    ):
        path.write_text(content)
    (whole / "profile").mkdir()
    (whole / "profile" / "shares.json").write_text(content)
    (whole / "metrics.jsonl").write_text(content)
    assert len(page(whole).sections) == 9


@pytest.mark.parametrize("name", ["", "absent", "file"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"holds no run|is no folder") as refused:
        read_run(tmp_path / name)
    assert refused.value.fix.startswith("name the --log-dir or the --checkpoint-dir of a run")


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
    text = page_of([read_run(tmp_path)], NOW)
    assert ("still running" in text) == (status == "running")


def test_one_of_a_runs_two_folders_leads_to_the_other(tmp_path: Path) -> None:
    log, checkpoints = tmp_path / "log", tmp_path / "checkpoints"
    leave_ranks(log)
    leave_metrics(checkpoints)
    for folder in (log, checkpoints):
        (folder / "run.json").write_text(json.dumps({"log_dir": str(log), "checkpoints": str(checkpoints)}))
    assert {
        folder.name: (len(read_run(folder).states), "loss" in read_run(folder).metrics) for folder in (log, checkpoints)
    } == {"log": (4, True), "checkpoints": (4, True)}
    # Another run has taken the place of this one's checkpoints.
    (checkpoints / "run.json").write_text(json.dumps({"log_dir": None, "checkpoints": str(checkpoints)}))
    assert "loss" not in read_run(log).metrics
    assert read_run(checkpoints).states == []


def test_supervised_starts_are_one_run(tmp_path: Path) -> None:
    leave_ranks(tmp_path / "attempt-2", began=NOW - 1000)
    leave_ranks(tmp_path / "attempt-10", began=NOW - 100, ranks=2)
    leave_failure(tmp_path / "attempt-2")
    attempts = [
        {"number": 2, "code": 1, "rank": 1, "host": "node0", "what": "odd", "next": "started again"},
        {"number": 10, "code": 0},
    ]
    (tmp_path / "attempts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in attempts))
    run = read_run(tmp_path)
    assert (len(run.states), sorted(run.histories), len(run.histories[0])) == (2, [0, 1, 2, 3], 20)
    assert ["2", "rank 1 on node0: odd", "started again", "1"] in [row[:4] for row in page(tmp_path).rows]
    grid = grid_of(run.histories)
    assert grid is not None
    assert None in lateness(grid)[0][0]  # nothing is known between the two


def test_energy_is_not_added_from_one_gpus_counter_to_anothers(tmp_path: Path) -> None:
    leave_ranks(tmp_path / "attempt-1", 1, began=NOW - 1000)
    leave_ranks(tmp_path / "attempt-2", 1, began=NOW - 100, host="spare")
    history = tmp_path / "attempt-2" / "state" / "rank-00000.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    history.write_text("".join(json.dumps(one | {"gpu_energy": 9e8 + one["gpu_energy"]}) + "\n" for one in lines))
    (tmp_path / "attempts.jsonl").write_text("")
    assert "3600 J" in page_of([read_run(tmp_path)], NOW)  # 9 × 200 in each attempt
    (spare,) = [row for row in page(tmp_path).rows if row[0] == "spare" and "W" in row[-1]]
    assert spare[-2:] == ["1800 J", "100 W"]  # in the 18 s of its samples


def test_the_time_of_a_step_has_three_parts(tmp_path: Path) -> None:
    leave_ranks(tmp_path)
    grid = grid_of(read_run(tmp_path).histories)
    assert grid is not None
    parts = {name: row[5] for name, row in parts_of_step(grid).items()}
    assert parts == {"data": pytest.approx(50), "forward": pytest.approx(50), "rest": pytest.approx(300)}


def test_a_rank_that_saves_for_a_moment_trains_and_one_without_a_step_does_not(tmp_path: Path) -> None:
    leave_ranks(tmp_path, 2)
    path = tmp_path / "state" / "rank-00000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[4]["phase"] = "saving"
    lines[7] |= {"phase": "evaluating", "step": 6}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(tmp_path)
    assert [one["trains"] for one in run.histories[0]] == [number != 7 for number in range(10)]
    grid = grid_of(run.histories)
    assert grid is not None
    rows, _ = lateness(grid)
    place = [one == one for one in rows[0] if one is not None].index(False)
    assert rows[1][place] is None  # the other rank is late in comparison with nobody


def test_a_long_run_of_many_ranks_is_a_small_page(tmp_path: Path) -> None:
    leave_metrics(tmp_path, 20_000, mfu=0.4, units_per_s=1e6, grad_norm=1.0)
    leave_ranks(tmp_path, 512)
    text = page_of([read_run(tmp_path)], NOW)
    assert len(text) < 400_000


def test_a_curve_keeps_its_ends_and_peaks() -> None:
    points = [(float(step), 100.0 if step == 4711 else 1.0) for step in range(10_000)]
    thin = thinned(points)
    assert len(thin) <= MOST_POINTS
    assert (thin[0], thin[-1]) == (points[0], points[-1])
    assert (4711.0, 100.0) in thin


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [-3.0, -3.0], [1e-300, 1e300], [5.0, float("nan"), 7.0]])
def test_any_numbers_make_a_picture(values: list[float]) -> None:
    drawn = chart("t", [Curve(label="", points=list(enumerate(values)))], x="step")
    assert "<path" in drawn
    assert "nan" not in drawn
    assert chart("t", [Curve(label="", points=[(1.0, float("nan"))])], x="step") == ""


def test_numbers_and_times_at_axes() -> None:
    assert list(map(number_text, (0.0, 0.002, 1.2e-5, 950.0, 4200.0, 12_500.0, 3e6))) == [
        *("0", "0.002", "1.2e-05", "950", "4200", "12.5k", "3M")
    ]
    assert list(map(time_text, (0.0, 45.0, 90.0, 7200.0, 259_200.0))) == ["0 s", "45 s", "1.5 min", "2 h", "3 d"]


def test_a_run_without_anything_but_its_name() -> None:
    found = Page(page_of([RunFolder(name="empty", places=[])], time.time()))
    assert found.figures == []
    assert "--log-dir" in found.sections["ranks"]
