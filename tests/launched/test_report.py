"""``report`` of a job that ran: what the ranks have left is on the page."""

from __future__ import annotations

import os
from pathlib import Path

from tests.html_page import Page
from tests.launching import RUNNER, folder_of, mpirun, ok, run
from tests.results import refused


def test_a_training_that_started_again_in_place(tmp_path: Path) -> None:
    """The closing line names the command, which finds the log folder, too."""
    log, checkpoints = tmp_path / "log", tmp_path / "run"
    job = ["faulty", "--resume", "auto", "--checkpoint-dir", str(checkpoints), "--save-every", "20steps"]
    job += ["--max-steps", "60", "--milliseconds", "50", "--fault", "raise", "--at", "31"]
    job += ["--once", str(tmp_path / "once")]
    done = ok(mpirun(2, *RUNNER, "--restart-in-place", "1", "--log-dir", str(log), *job, cwd=folder_of("faulty")))
    ending = done.stdout.splitlines()[-1]
    assert ending == f"report      python -m runner report {checkpoints}"
    assert ok(run(*RUNNER, *ending.split()[4:])).stdout.startswith(f"report: {checkpoints}/report.html (")
    found = Page((checkpoints / "report.html").read_text())
    assert {"loss", "learning rate", "samples/s, all ranks", "ms of a step, mean of the ranks"} <= {*found.figures}
    late = found.rows[[row[:3] for row in found.rows].index(["rank", "host", "late, mean"]) + 1 :][:2]
    assert {row[0] for row in late} == {"0", "1"}
    assert all(row[1] == os.uname().nodename and row[3] != "n/a" for row in late)
    assert ["1", "ValueError: odd", "all ranks started again", "31", "1"] in [row[:5] for row in found.rows]
    assert [row[0] for row in found.rows].count("step-60") == 1
    assert ["fault", '"raise"'] in found.rows


def test_a_script_leaves_its_ranks_and_its_command(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('<script>')\n")
    assert mpirun(2, *RUNNER, "--log-dir", "log", "fails.py", "a b", cwd=tmp_path).returncode == 1
    ok(run(*RUNNER, "report", "log", "--output", "page.html", cwd=tmp_path))
    found = Page((tmp_path / "page.html").read_text())
    assert "script" not in found.tags
    assert ["ValueError: <script>", "the job ended"] in [row[1:3] for row in found.rows]
    (command,) = (row[1] for row in found.rows if row[0] == "command")
    assert command.endswith("runner --log-dir log fails.py 'a b'")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    told = f"{tmp_path} holds no run; name the --log-dir or the --checkpoint-dir of a run"
    refused(run(*RUNNER, "report", str(tmp_path)), told)
    refused(run(*RUNNER, "report", str(tmp_path / "absent")), "is no folder")
