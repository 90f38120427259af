"""Before a job is started again its ranks have ended, also those that have lost their launcher."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from runner.guard.report.rank_state import RankState
from runner.tools.supervise import attempts
from runner.tools.supervise.attempts import Attempt, SignalRelay, run_attempt, wait_for_ranks
from runner.tools.supervise.command_hosts import read_hosts
from runner.tools.supervise.supervise import _host_to_leave, _note, _reason_to_end
from tests.launching import mpirun_path

GIVEN = argparse.Namespace(max_restarts=3)


def write(folder: Path, rank: int, **state: Any) -> None:
    (folder / "state").mkdir(exist_ok=True)
    (folder / "state" / f"rank-{rank:05d}.json").write_text(json.dumps({"rank": rank, "interval": 0.1, **state}))


def test_a_rank_on_this_host_runs_as_long_as_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        write(tmp_path, 0, host=socket.gethostname(), pid=process.pid, time=1.0, phase="saving")
        assert [one.rank for one in wait_for_ranks(tmp_path, everywhere=False, within=0.5)] == [0]
        process.kill()
        process.wait()
        assert wait_for_ranks(tmp_path, everywhere=False, within=60) == []


def test_a_rank_on_another_host_runs_as_long_as_its_guard_says_so(tmp_path: Path) -> None:
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), phase="training", interval=1000)
    assert wait_for_ranks(tmp_path, everywhere=False) == []
    assert [one.rank for one in wait_for_ranks(tmp_path, everywhere=True, within=0.5)] == [1]
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), phase="training")
    assert wait_for_ranks(tmp_path, everywhere=True, within=60) == []  # it has been silent
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), interval=1000, phase="ended", exit_code=137)
    assert wait_for_ranks(tmp_path, everywhere=True) == []
    write(tmp_path, 0, host="elsewhere", pid=1, time=time.time(), interval=1000, phase="ended", exit_code=1, lost=1)
    write(tmp_path, 1, host="elsewhere", pid=1, time=time.time(), interval=1000, phase="training")
    assert wait_for_ranks(tmp_path, everywhere=True) == []


@pytest.mark.parametrize("codes", [(0, 0), (0, 3), (75, 75)])
def test_a_launcher_that_hangs_after_its_ranks_is_ended_and_their_code_counts(
    codes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_ROUND", 0.01)
    for rank, code in enumerate(codes):
        write(tmp_path, rank, size=2, host="elsewhere", phase="ended", exit_code=code)
    ended = run_attempt(1, ["sleep", "60"], tmp_path, SignalRelay())
    assert (ended.code, ended.rank_code) == (max(codes), max(codes) or None)
    write(tmp_path, 1, size=2, host="elsewhere", phase="training")  # a launcher waits for its last rank
    assert run_attempt(1, ["sleep", "0.5"], tmp_path, SignalRelay()).code == 0


@pytest.mark.parametrize(
    ("launcher", "code_of_rank", "is_waited_for"),
    [("kill -9 $$", None, True), ("exit 137", None, True), ("exit 137", 137, False), ("exit 1", None, False)],
)
def test_ranks_on_other_hosts_are_waited_for_after_a_launcher_that_was_killed(
    launcher: str, code_of_rank: int | None, is_waited_for: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a shell is between: it says 128 + n, as a launcher may after a rank that was killed."""
    waited: list[bool] = []

    def waiting(_: Path, *, everywhere: bool, **__: Any) -> list[RankState]:
        waited.append(everywhere)
        return []

    monkeypatch.setattr(attempts, "wait_for_ranks", waiting)
    write(tmp_path, 0, size=2, host="elsewhere", phase="ended", exit_code=code_of_rank)
    run_attempt(1, ["bash", "-c", launcher], tmp_path, SignalRelay())
    assert waited == [is_waited_for]


@pytest.mark.parametrize(
    ("what", "ended_by", "is_the_end"),
    [
        ("ValueError: odd", None, True),
        ("killed by SIGSEGV", "SIGSEGV", True),
        ("killed by SIGKILL for lack of memory", None, True),
        ("killed by SIGKILL", "SIGKILL", False),
    ],
)
def test_a_programs_own_error_at_the_same_step_ends_it(what: str, ended_by: str | None, is_the_end: bool) -> None:
    how: dict[str, Any] = {"code": 137, "rank": 1, "rank_code": 137, "step": 7, "what": what, "ended_by": ended_by}
    one = Attempt(number=1, began=0.0, seconds=9.0, **how)
    reason = _reason_to_end(one, one, GIVEN, is_workload=True, is_last=False)
    assert reason == ("the same error at the same step (7) as before" if is_the_end else "")


@pytest.mark.parametrize(
    ("launcher", "code_of_rank", "ended_by", "code", "reason"),
    [
        ("exit 255", 75, None, 75, "it asks to be queued again"),  # Intel MPI's mpirun
        ("exit 1", 75, "SIGUSR1", 75, "it asks to be queued again"),  # torchrun
        ("exit 1", 2, None, 2, "the request is wrong, and a restart does not fix that"),
        ("kill -9 $$", 75, "SIGTERM", 137, ""),  # the ranks have saved because of that
        ("exit 137", 75, None, 137, ""),
        ("exit 1", 75, "SIGTERM", 1, ""),  # of an Open MPI that has got a signal
        ("exit 1", 1, None, 1, ""),
    ],
)
def test_the_ranks_code_counts_where_the_launcher_gives_another(
    launcher: str, code_of_rank: int, ended_by: str | None, code: int, reason: str, tmp_path: Path
) -> None:
    write(tmp_path, 0, size=1, host="elsewhere", phase="ended", exit_code=code_of_rank, ended_by=ended_by)
    attempt = run_attempt(1, ["bash", "-c", launcher], tmp_path, SignalRelay())
    assert attempt.job_code == code
    assert _reason_to_end(attempt, None, GIVEN, is_workload=True, is_last=False) == reason


def ended(folder: Path, code: int, step: int, rank_1: dict[str, object], what: str, **failed: object) -> Attempt:
    """An attempt that rank 1, on host b, has ended, as the guards leave it: rank 0's knows most."""
    folder.mkdir()
    write(folder, 0, host="a", size=2, step=step, phase="ended", addresses=["10.77.0.1"], exit_code=code, what=what)
    write(folder, 1, host="b", size=2, step=step, addresses=["10.77.0.2", "192.168.7.2"], **rank_1)
    (folder / "failure.json").write_text(json.dumps({"rank": 1, "host": "b", "what": what, "step": step, **failed}))
    return run_attempt(1, ["bash", "-c", f"exit {code}"], folder, SignalRelay())


@pytest.mark.parametrize("hosts", ["a:1,b:1,c:1", "10.77.0.1,192.168.7.2,10.77.0.3"])
def test_the_host_of_a_rank_that_hung_twice_is_left_out(hosts: str, tmp_path: Path) -> None:
    what = "hangs after step {}"
    hung: dict[str, object] = {"phase": "ended", "exit_code": 70, "what": ""}
    one, two = (ended(tmp_path / f"{n}", 70, n, hung, what.format(n), exit_code=70) for n in (1, 2))
    assert (two.rank, two.host, two.rank_code, two.what) == (1, "b", 70, what.format(2))
    known = read_hosts([mpirun_path(), "--host", hosts, "-np", "2"], {}, 1)
    assert _host_to_leave(one, None, known) is None
    assert _host_to_leave(two, one, known) == hosts.split(",")[1].partition(":")[0]


def test_a_lost_host_is_left_out_by_its_address(tmp_path: Path) -> None:
    lost = ended(tmp_path / "1", 1, 5, {"phase": "training"}, "its host has not answered for 30 s", exit_code=None)
    assert (lost.is_lost, lost.rank_code, lost.what) == (True, None, "lost with its guard")
    known = read_hosts([mpirun_path(), "--host", "10.77.0.1:1,10.77.0.2:1,10.77.0.3:1", "-np", "2"], {}, 1)
    assert _host_to_leave(lost, None, known) == "10.77.0.2"
    _note(tmp_path / "log", lost)
    assert json.loads((tmp_path / "log").read_text())["addresses"] == ["10.77.0.2", "192.168.7.2"]


def test_a_failure_that_a_later_runner_has_written_is_said_and_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = ended(tmp_path / "1", 1, 5, {"phase": "training"}, "lost", exit_code=None, format=2)
    assert not newer.is_lost
    path = tmp_path / "1" / "failure.json"
    assert capsys.readouterr().err == f"supervise: {path} is of format 2, and this runner reads 1; update the runner\n"


def test_a_log_that_cannot_be_written_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _note(Path("/dev/full"), Attempt(number=1, began=0.0, seconds=9.0, code=1))
    assert capsys.readouterr().err == (
        "supervise: cannot write /dev/full: No space left on device; continuing without it\n"
    )
