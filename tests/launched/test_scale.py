"""``scale`` starts real mpiruns: what is known is found again, and what goes wrong with a size is in its row."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

from tests.launching import RUNNER, finish, folder_of, mpirun_path, ok, path_of, run, runner, start
from tests.polling import poll_until
from tests.processes import left_of
from tests.results import refused

LONG = 240.0
COSTS = {"c": 0.8, "a": 0.1, "b": 0.025}  # seconds, large beside what a busy machine adds
COMMAND = ["--", mpirun_path(), "--map-by", ":OVERSUBSCRIBE", "-np", "{ranks}", *RUNNER]
SHORT = ["--steps", "4", "--warmup", "1", "--rounds", "1"]


def scale(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(*RUNNER, "scale", *words, cwd=folder, timeout=LONG, MPIRUN=mpirun_path(), **environment)


def studied(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of a study's file by their ranks."""
    return {row["ranks"]: row for row in json.loads(path.read_text())["sizes"]}


def test_known_costs_are_found_again(tmp_path: Path) -> None:
    files = ["--json", "a.json", "--csv", "a.csv", "--latex", "a.tex", "--plot", "a.svg"]
    costs = [f"--{name}={seconds}" for name, seconds in COSTS.items()]
    job = [*COMMAND, "known_costs", "--global-batch-size", "256", *costs]
    done = ok(scale(tmp_path, "--ranks", "1,2,4", *SHORT, *files, *job, PYTHONPATH=str(folder_of("known_costs"))))
    rows = studied(tmp_path / "a.json")
    assert list(rows) == [1, 2, 4]
    for ranks, row in rows.items():
        known = COSTS["c"] / ranks + (COSTS["a"] + COSTS["b"] * ranks if ranks > 1 else 0)
        assert known <= row["rounds"][0]  # sleeping takes longer on a busy machine, never less
        assert not row["problem"]
    assert "known_costs, strong scaling" in done.stdout
    assert re.search(r"c [\d.]+ ms, a [\d.]+ ms, b [\d.]+ ms", done.stdout)
    with (tmp_path / "a.csv").open() as file:
        assert [int(row["ranks"]) for row in csv.DictReader(file)] == [1, 2, 4]
    assert (tmp_path / "a.tex").read_text().count(r"\\") == 4  # a head, and the rows
    assert "known_costs" in (tmp_path / "a.svg").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "a.csv", "a.tex", "a.svg"}  # and no checkpoint


def test_a_workload_and_a_script_on_one_and_two_ranks(tmp_path: Path) -> None:
    """By the launcher that is found."""
    own = ["workloads.resnet", "--image-size", "32", "--batch-size", "2"]
    ok(scale(tmp_path, *SHORT, "--ranks", "1,2", "--json", "a.json", *own))
    rows = studied(tmp_path / "a.json")
    assert {ranks: row["batch"] for ranks, row in rows.items()} == {1: 2, 2: 4}
    assert all(row["memory"] > 2**20 for row in rows.values())
    longer = ["--steps", "30", "--warmup", "1", "--rounds", "1"]  # than the script, which makes 16 on two
    script = [path_of("ddp_training"), "--workers", "1"]
    done = ok(scale(tmp_path, *longer, "--ranks=1,2", "--batch-size", "16", "--json", "b.json", *script))
    rows = studied(tmp_path / "b.json")
    assert {ranks: row["batch"] for ranks, row in rows.items()} == {1: 16, 2: 32}
    assert all(row["waiting"] > 0 for row in rows.values())
    assert "2 ranks: its training ended after 15 of 30 timed steps" in done.stdout
    assert not any("trains alone" in text for row in rows.values() for text in row["warnings"])
    for words, name in (("--plot both.png a.json b.json", "both.png"), ("a.json", "scale.png")):
        assert ok(scale(tmp_path, *words.split())).stdout == f"wrote {name}\n"
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_what_goes_wrong_with_a_size_is_in_its_row_and_the_rest_is_kept(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import os\nimport torch\n"
        "if os.environ['WORLD_SIZE'] == '2':\n    raise ValueError('two are too many')\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "for _ in range(9):\n    optimizer.step()\n"
    )
    done = ok(scale(tmp_path, *SHORT, "--ranks=1,2,3", "--json", "a.json", *COMMAND, "two.py"))
    rows = studied(tmp_path / "a.json")
    assert [bool(row["rounds"]) for row in rows.values()] == [True, False, True]
    assert re.search(r"rank \d of 2 on host \S+ failed: ValueError: two are too many", rows[2]["problem"])
    assert any("trains alone" in text for text in rows[3]["warnings"])
    assert not any("trains alone" in text for text in rows[1]["warnings"])
    assert "2 ranks: not measured: " in done.stdout
    assert left_of(tmp_path, 6.0) == []


def test_a_study_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import pathlib, time\npathlib.Path('began').touch()\ntime.sleep(100)\n")
    process = start(*RUNNER, "scale", "--ranks=2", *COMMAND, "sleeps.py", cwd=tmp_path)
    poll_until((tmp_path / "began").exists, LONG, "the script's start", process)
    process.send_signal(SIGTERM)
    assert finish(process).returncode == 128 + SIGTERM
    assert left_of(tmp_path, 10.0) == []
    assert not list(tmp_path.glob(".scale-*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["workloads.nothing"], "workloads.nothing"),
        ([], "name a workload or a script"),
        (["--csv", "no/a.csv", "workloads.mnist"], "--csv: cannot write in no"),
        (["no.json"], "no.json: No such file or directory"),
        (["--ranks", "1,2", "--", *RUNNER, "mine.py"], "the command has no {ranks}"),
        (["--", "mpirun", "-np", "{ranks}", sys.executable, "mine.py"], "put python -m runner before the script"),
        (["--ranks", "1", "--", "no-mpirun", *RUNNER, "mine.py"], "no-mpirun: No such file or directory"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\n")
    refused(scale(tmp_path, *words), said)


def test_it_is_not_started_by_mpirun(tmp_path: Path) -> None:
    done = runner(1, "scale", "workloads.mnist", cwd=tmp_path)
    refused(done, "scale starts mpirun or srun itself; start it without")
