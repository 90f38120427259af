"""--restart-in-place: all ranks start again without their launcher, on the way that the ranks met."""

from __future__ import annotations

import json
from pathlib import Path

from tests.launching import PROGRAMS, RUNNER, folder_of, mpirun, ok, own_lines, path_of, run, runner
from tests.results import metrics, refused

IN_PLACE = ["--restart-in-place", "2"]


def test_a_script_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    done = ok(runner(2, *IN_PLACE, path_of("killed_once"), str(tmp_path)))
    lines = own_lines(done)
    assert lines[0].startswith("runner: rank 1 of 2 on host ")
    assert ": killed by SIGKILL; " in lines[0]
    assert lines[1] == "runner: all ranks start again (1 of 2)"
    assert (tmp_path / "went-on").exists()


def test_a_training_goes_on_also_after_a_hang(tmp_path: Path) -> None:
    """A rank that has finished waits for the others: here rank 0, which makes no collective after the last step.

    No thread of a guard imports anything: a process that is forked meanwhile would wait for the import's lock without end.
    """
    imports = tmp_path / "imports"
    path = PROGRAMS / "environment" / "imports_by_threads"
    environment = {"PYTHONPATH": str(path), "IMPORTS_BY_THREADS": str(imports)}
    job = ["faulty", "--resume", "auto", "--checkpoint-dir", str(tmp_path), "--save-every", "end", "--max-steps", "60"]
    job += ["--save-every", "20steps", "--hang-timeout", "3", "--milliseconds", "1"]
    job = [*IN_PLACE, *job, "--fault", "sleep", "--at", "31", "--once", str(tmp_path / "once")]
    log = ["--log-dir", str(tmp_path / "log")]
    done = ok(mpirun(2, *RUNNER, *log, *job, cwd=folder_of("faulty"), **environment))
    assert imports.read_text() == ""
    assert "no progress for 3 s, after step 31: rank 1 on host " in done.stderr
    assert f"continuing from {tmp_path}/step-20" in done.stdout
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 61))


def test_it_ends_when_the_restarts_are_over(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('odd')\n")
    done = run(*RUNNER, *IN_PLACE, "--log-dir", "log", "fails.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("all ranks start again") == 2
    assert done.stderr.count("failed: ValueError: odd") == 3
    reports = [json.loads((tmp_path / "log" / f"failure{n}.json").read_text()) for n in ("-1", "-2", "")]
    assert [(one["attempt"], one["what"]) for one in reports] == [(n, "ValueError: odd") for n in range(3)]


def test_a_rank_that_has_finished_starts_again_with_one_that_hangs(tmp_path: Path) -> None:
    done = ok(runner(2, *IN_PLACE, path_of("stops_once"), str(tmp_path / "once")))
    lines = own_lines(done)
    assert len(lines) == 2, done.stderr
    assert lines[0].startswith("runner: stopped by a signal (SIGSTOP) for 10 s: rank 1 on host ")
    assert lines[1] == "runner: all ranks start again (1 of 2)"


def test_a_wrong_request_does_not_start_again() -> None:
    done = mpirun(2, *RUNNER, *IN_PLACE, "faulty", "--epochs", "none", cwd=folder_of("faulty"))
    assert done.returncode == 2
    assert "start again" not in done.stderr


def test_it_is_refused_where_it_cannot_be() -> None:
    done = runner(2, *IN_PLACE, "--rendezvous", "mpi", "faulty")
    refused(done, "--restart-in-place cannot be used here: --rendezvous mpi; leave one of the two out")
    ok(run(*RUNNER, *IN_PLACE, "explain"))


def test_the_time_limit_counts_from_the_start_of_the_job(tmp_path: Path) -> None:
    job = ["faulty", "--resume", "auto", "--checkpoint-dir", str(tmp_path / "run"), "--max-steps", "60", "--time-limit"]
    job += ["0:20", "--hang-timeout", "24", "--once", str(tmp_path / "once")]
    done = run(*RUNNER, *IN_PLACE, *job, "--fault", "sleep", "--on", "0", "--at", "1", cwd=folder_of("faulty"))
    assert done.returncode == 75, done.stderr
    assert "all ranks start again (1 of 2)" in done.stderr
    assert "the time limit is near: saved" in done.stderr
