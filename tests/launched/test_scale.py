"""``scale`` under a real mpirun: what is known is found again, and what goes wrong with a size is in its row."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.launching import folder_of, ok, path_of, runner
from tests.processes import left_of

LONG = 240.0
COSTS = {"c": 0.8, "a": 0.1, "b": 0.025}  # seconds, large beside what a busy machine adds


def studied(path: Path, scaling: str) -> dict[int, dict[str, Any]]:
    """The rows of a study's file by their ranks."""
    return {row["ranks"]: row for row in json.loads(path.read_text())["sizes"] if row["scaling"] == scaling}


def test_known_costs_are_found_again(tmp_path: Path) -> None:
    words = ["--scaling", "strong", "--global-batch-size", "256", "--steps", "4", "--warmup", "1", "--rounds", "1"]
    files = ["--json", "a.json", "--csv", "a.csv", "--latex", "a.tex", "--plot", "a.svg"]
    costs = [f"--{name}={seconds}" for name, seconds in COSTS.items()]
    done = ok(
        runner(
            4, "scale", *words, "--interval", "9", *files, "known_costs", *costs, cwd=tmp_path, timeout=LONG,
            PYTHONPATH=folder_of("known_costs"),
        )
    )  # fmt: skip
    rows = studied(tmp_path / "a.json", "strong")
    assert list(rows) == [1, 2, 4]
    for ranks, row in rows.items():
        known = COSTS["c"] / ranks + (COSTS["a"] + COSTS["b"] * ranks if ranks > 1 else 0)
        assert known <= row["rounds"][0] < 1.1 * known
        assert not row["problem"]
    found = re.search(r"c ([\d.]+) ms, a ([\d.]+) ms, b ([\d.]+) ms", done.stdout)
    assert found
    assert float(found[1]) == pytest.approx(800, rel=0.1)
    with (tmp_path / "a.csv").open() as file:
        assert [int(row["ranks"]) for row in csv.DictReader(file)] == [1, 2, 4]
    assert (tmp_path / "a.tex").read_text().count(r"\\") == 5  # a head, one line over the rows, the rows
    assert "known_costs" in (tmp_path / "a.svg").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.csv", "a.tex", "a.svg"}  # and no checkpoint


def test_a_workload_and_a_script_on_one_and_two_ranks(tmp_path: Path) -> None:
    short = ["--steps", "4", "--warmup", "1", "--rounds", "1", "--interval", "9"]
    own = ["--image-size", "32", "--batch-size", "2"]
    ok(runner(2, "scale", "workloads.resnet", *short, *own, "--json", "a.json", cwd=tmp_path, timeout=LONG))
    for scaling, batches in (("strong", {1: 4, 2: 4}), ("weak", {1: 2, 2: 4})):
        rows = studied(tmp_path / "a.json", scaling)
        assert {ranks: row["batch"] for ranks, row in rows.items()} == batches
        assert all(row["compute"] > 0 and row["memory"] > 2**20 for row in rows.values())
        assert rows[2]["exposed"] > rows[1]["exposed"]
    longer = [
        "--steps",
        "30",
        "--warmup",
        "1",
        "--rounds",
        "1",
        "--interval",
        "9",
    ]  # than the script, which makes 16 on two
    script = path_of("ddp_training")
    ok(
        runner(
            2,
            "scale",
            *longer,
            "--batch-size",
            "16",
            "--json",
            "b.json",
            script,
            "--workers",
            "1",
            cwd=tmp_path,
            timeout=LONG,
        )
    )
    rows = studied(tmp_path / "b.json", "weak")
    assert {ranks: row["batch"] for ranks, row in rows.items()} == {1: 16, 2: 32}
    assert all(row["waiting"] > 0 for row in rows.values())
    assert "its training ended after 15 of 30 timed steps" in rows[2]["warnings"]
    assert not any("trains alone" in text for row in rows.values() for text in row["warnings"])
    assert not studied(tmp_path / "b.json", "strong")
    for words, name in (
        ("--plot both.png a.json b.json", "both.png"),
        ("--plot a.json b.json", "scale.png"),
        ("--plot a.json", "scale.png"),
    ):
        assert ok(runner(2, "scale", *words.split(), cwd=tmp_path)).stdout == f"wrote {name}\n"  # by one rank
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("workers", ["0", "1"])
def test_steps_with_one_batch_need_no_loader(workers: str, tmp_path: Path) -> None:
    own = ["--data", "digits", "--workers", workers, "--global-batch-size", "32", "--checkpoint-dir", "mine"]
    (tmp_path / "request.json").write_text('{"warmup": 1, "steps": 60, "profiled": 0, "fixed_data": true}')
    ok(runner(1, f"--measure={tmp_path}", "workloads.mnist", *own, cwd=tmp_path))
    assert len(json.loads((tmp_path / "rank-00000.json").read_text())["seconds"]) == 60
    assert not (tmp_path / "mine").exists()


def test_what_goes_wrong_with_a_size_is_in_its_row_and_the_rest_is_kept(tmp_path: Path) -> None:
    short = ["--steps", "3", "--warmup", "1", "--rounds", "1", "--interval", "9", "--scaling", "weak"]
    (tmp_path / "two.py").write_text(
        "import os\nimport torch\n"
        "if os.environ['WORLD_SIZE'] == '2':\n    raise ValueError('two are too many')\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "for _ in range(9):\n    optimizer.step()\n"
    )
    done = ok(runner(3, "scale", *short, "--json", "a.json", "two.py", cwd=tmp_path, timeout=LONG))
    rows = studied(tmp_path / "a.json", "weak")
    assert [bool(row["rounds"]) for row in rows.values()] == [True, False, True]
    assert re.search(r"rank \d of 2 on host \S+ failed: ValueError: two are too many", rows[2]["problem"])
    assert any("trains alone" in text for text in rows[3]["warnings"])
    assert not any("trains alone" in text for text in rows[1]["warnings"])
    assert "2 weak: not measured" in done.stdout
    assert left_of(tmp_path, 6.0) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "1,3", "workloads.mnist"], "--ranks 1,3: this launch has 1 rank, and 3 are asked for"),
        (["workloads.nothing"], "workloads.nothing"),
        ([], "name a workload or a script"),
        (["--csv", "no/a.csv", "workloads.mnist"], "--csv: cannot write in no"),
        (["--scaling", "strong", "mine.py"], "only weak scaling can be measured"),
        (["no.json"], "no.json: No such file or directory"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n")
    done = runner(1, "scale", *words, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("runner: ")]
    assert said in line
    assert "Traceback" not in done.stderr
