"""The guard passes exit codes and signals on, and bounds waits."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from runner.guard.report.rank_state import read_states
from tests.launching import path_of
from tests.polling import LIMIT

WITHOUT_TORCH = "sys.modules['torch'] = sys.modules['torch.distributed'] = None"


def command(line: str, before: str = "", watched: str = "", words: str = "") -> list[str]:
    """What starts a guard whose worker runs this line: see tests/programs/failures/guarded.py."""
    return [sys.executable, path_of("guarded"), line, before, watched, words]


@contextmanager
def guarded(line: str, before: str = "", watched: str = "", words: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process under guard that runs this line as its worker; gone, with its worker, when the context ends."""
    process = subprocess.Popen(
        command(line, before, watched, words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            for started in psutil.Process(process.pid).children(recursive=True):
                started.kill()  # else it may keep the output open
        process.kill()
        process.communicate()


def worker_of(process: subprocess.Popen[str]) -> psutil.Process:
    assert process.stdout is not None
    return psutil.Process(int(process.stdout.readline().split()[1]))


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_codes_pass_through(code: int) -> None:
    with guarded(f"sys.exit({code})") as process:
        process.communicate(timeout=LIMIT)
        assert process.returncode == code


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_deadly_signal_is_named(name: str) -> None:
    number = signal.Signals[name]
    with guarded(f"os.kill(os.getpid(), {int(number)})") as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 128 + number
        assert f"rank 0 of 1 on host here: killed by {name}" in errors


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT"])
def test_signals_are_passed_on(name: str) -> None:
    line = f"signal.signal(signal.{name}, lambda *_: os._exit(42)); print('ready', flush=True); time.sleep(300)"
    with guarded(line) as process:
        worker_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        assert process.wait(timeout=LIMIT) == 42


def test_the_worker_dies_with_its_guard() -> None:
    with guarded("time.sleep(300)") as process:
        worker = worker_of(process)
        process.kill()
        process.wait()
        assert worker.wait(timeout=LIMIT) is not None or not worker.is_running()


def test_a_wait_that_the_worker_cannot_bound_is_bounded_and_its_place_is_told() -> None:
    for line, what in (
        ("lifeline.tell(Seeks()); time.sleep(300)", "nobody came (None)"),
        ("time.sleep(300)", "has not started in time; allow more with --timeout"),
    ):
        with guarded(line, watched="rendezvous_timeout=3") as process:
            _, errors = process.communicate(timeout=LIMIT)
            assert process.returncode == 1
            assert what in errors
            assert "it was in <module> (<string>:1)" in errors


def test_a_worker_that_does_not_come_to_look_for_the_others_is_told_early() -> None:
    """Its file system may hang. The others wait for it."""
    slow = "has not started yet: it is in <module> (<string>:1)"
    with guarded("time.sleep(9); lifeline.tell(Met(None))", watched="rendezvous_timeout=14") as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors.count(slow)) == (0, 1)
    with guarded("lifeline.tell(Seeks()); time.sleep(9)", watched="rendezvous_timeout=14") as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (0, "")


def test_a_worker_that_is_stopped_before_it_has_met_the_others_counts_as_hung() -> None:
    with guarded("os.kill(os.getpid(), signal.SIGSTOP)") as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 70
        assert "stopped by a signal (SIGSTOP) for 10 s: rank 0 in <module> (<string>:1)" in errors


def test_the_clock_stops_when_the_ranks_have_met() -> None:
    line = "lifeline.tell(Met(None)); time.sleep(4); sys.exit(5)"
    with guarded(line, watched="rendezvous_timeout=3") as process:
        process.communicate(timeout=LIMIT)
        assert process.returncode == 5


def test_a_library_that_ends_the_worker_before_the_rendezvous_is_told() -> None:
    with guarded("os._exit(16)") as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 16
        assert "rank 0 of 1 on host here: nobody came (16)" in errors
    with guarded("lifeline.tell(Met(None)); os._exit(16)") as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 16
        assert errors == ""


def test_the_last_word_of_a_worker_that_ended_before_its_guard_looked_counts() -> None:
    slow = "os.register_at_fork(after_in_parent=lambda: time.sleep(1))"
    with guarded("lifeline.tell(Met(None)); os._exit(16)", before=slow) as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (16, "")
    with guarded("lifeline.tell(Fails(code=9, everywhere=False)); os.kill(os.getpid(), 9)", before=slow) as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (9, "")


def test_a_failed_worker_that_hangs_is_ended_with_its_code() -> None:
    with guarded("lifeline.tell(Fails(code=9, everywhere=False)); time.sleep(300)") as process:
        process.communicate(timeout=LIMIT)
        assert process.returncode == 9


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """What ``start_children`` has started. The program goes on once they have been looked at."""
    assert process.stdout is not None
    assert process.stdin is not None
    children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    process.stdin.write("\n")
    process.stdin.flush()
    return children


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(3)",
        "os.kill(os.getpid(), 9)",
        "lifeline.tell(Fails(code=9, everywhere=False)); time.sleep(300)",
        "sys.exit()",
        "guard killed",
    ],
)
def test_what_the_program_has_started_ends_with_it(end: str) -> None:
    """But for what it has put in a session of its own."""
    with guarded("start_children(); " + (end if end != "guard killed" else "time.sleep(300)")) as process:
        worker_of(process)
        *ending, staying = children_of(process)
        if end == "guard killed":
            process.kill()
        process.wait(timeout=LIMIT)
        assert not psutil.wait_procs(ending, timeout=LIMIT)[1]
        assert staying.is_running()
        staying.kill()


def test_what_the_program_has_started_ends_also_with_a_guard_that_is_killed_at_once() -> None:
    slow = "os.register_at_fork(after_in_parent=lambda: time.sleep(1))"
    with guarded("start_children(); time.sleep(300)", before=slow) as process:
        worker_of(process)
        *ending, staying = children_of(process)
        process.kill()
        assert not psutil.wait_procs(ending, timeout=LIMIT)[1]
        assert staying.is_running()
        staying.kill()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_the_program_receives_a_signal_before_what_it_has_started(name: str) -> None:
    """Else the end of its data loaders would spoil the checkpoint that it saves on SIGTERM."""
    line = (
        f"start_children(); signal.signal(signal.{name}, tell_and_leave); print('ready', flush=True); time.sleep(300)"
    )
    with guarded(line) as process:
        worker_of(process)
        children = children_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.Signals[name])
        assert process.stdout.readline() == "None\n"
        assert process.wait(timeout=LIMIT) == 42
        assert not psutil.wait_procs(children[:2], timeout=LIMIT)[1]
        children[2].kill()


def test_without_standard_input_what_the_program_has_started_ends_with_its_guard_too() -> None:
    """The number of standard input goes to the first file that the guard opens."""
    closed = ["bash", "-c", 'exec "$@" 0<&-', "bash", *command("start_children(waits=False); time.sleep(300)")]
    with subprocess.Popen(closed, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        worker_of(process)
        assert process.stdout is not None
        *ending, staying = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        process.kill()
        assert not psutil.wait_procs(ending, timeout=LIMIT)[1]
        staying.kill()


def test_a_rank_that_fails_as_all_do_waits_for_the_one_that_says_why() -> None:
    line = "lifeline.tell(Met(None)); lifeline.tell(Fails(code=2, everywhere=True)); time.sleep(4); print('left', flush=True); os._exit(2)"
    with guarded(line) as process:
        assert process.communicate(timeout=LIMIT)[0].endswith("left\n")
        assert process.returncode == 2


def test_where_the_ends_of_children_are_ignored_the_workers_exit_code_is_passed_on_all_the_same() -> None:
    with guarded("sys.exit(7)", before="signal.signal(signal.SIGCHLD, signal.SIG_IGN)") as process:
        process.communicate(timeout=LIMIT)
        assert process.returncode == 7


def exit_code_after_ctrl_c(*program: str, is_typed: bool = True) -> int:
    """The exit code of ``guarded.py`` on a terminal where Ctrl-C is typed, or of which the guard alone is sent SIGINT."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command(*program))
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1000)
    if is_typed:
        os.write(terminal, b"\x03")
    else:
        os.kill(pid, signal.SIGINT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return code


@pytest.mark.parametrize("is_typed", [True, False], ids=["typed", "sent"])
def test_ctrl_c_and_sigint_on_a_terminal_are_received_once(is_typed: bool) -> None:
    assert exit_code_after_ctrl_c("sys.exit(interrupts(then=0.5))", is_typed=is_typed) == 1


def test_a_script_that_was_started_again_is_told_to_save_too() -> None:
    line = "signal.signal(signal.SIGUSR1, lambda *_: os._exit(40 + lifeline.attempt)); lifeline.tell(Met(None)); time.sleep(20)"
    with guarded(line, watched="restarts=1, notice=signal.SIGUSR1, notice_within=0.0") as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 41
        assert errors.count("the time limit is near: the script is told to save") == 2


def test_who_ended_it_is_said() -> None:
    line = "lifeline.tell(Met(None)); lifeline.board.step(1, 9, 1, 1); print('ready', flush=True); time.sleep(300)"
    with guarded(line, watched=f"launcher=lambda: {os.getpid()}") as process:
        worker_of(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 143
        assert errors.startswith("runner: rank 0 of 1 on host here: SIGTERM from the launcher: the job was ended, or")
        assert errors.endswith("; continue\n")
    with guarded("time.sleep(300)") as process:
        worker_of(process)
        subprocess.run(["sh", "-c", f"kill -TERM {process.pid}; true"], check=True)
        _, errors = process.communicate(timeout=LIMIT)
        assert "rank 0 of 1 on host here: SIGTERM from sh (process " in errors or "from process " in errors


def test_a_worker_that_ends_by_itself_is_not_said_to_be_ended() -> None:
    line = "signal.signal(signal.SIGTERM, signal.SIG_IGN); lifeline.tell(Fails(code=2, everywhere=False)); print(1, flush=True); time.sleep(1)"
    with guarded(line) as process:
        worker_of(process)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (2, "")


def test_a_signal_to_the_worker_alone_is_named() -> None:
    with guarded("time.sleep(300)") as process:
        worker_of(process).terminate()
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (143, "runner: rank 0 of 1 on host here: killed by SIGTERM\n")


# Starts what its arguments say, drops its output, and ends it by SIGTERM, and by SIGKILL once it has left its last state.
LAUNCHER = """
import json, pathlib, signal, subprocess, sys, time
folder, *command = sys.argv[1:]
state = pathlib.Path(folder, "state", "rank-00000.json")
rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
while rank.stdout.readline() != "ready\\n":
    pass
rank.send_signal(signal.SIGTERM)
while not (state.exists() and json.loads(state.read_text())["exit_code"] is not None):
    time.sleep(0.05)
rank.kill()
"""


def test_a_launcher_that_drops_the_last_words_and_kills_is_no_loss(tmp_path: Path) -> None:
    """As Open MPI's mpirun after SIGTERM or Ctrl-C. The worker would wait for a minute for the others after its words."""
    tell = "lifeline.tell(Fails(code=75, everywhere=True, why='SIGTERM: saved step-7', signal='SIGTERM'))"
    line = f"signal.signal(signal.SIGTERM, lambda *_: {tell}); print('ready', flush=True); time.sleep(60)"
    line = f"lifeline.tell(Met(None)); {line}; time.sleep(60)"
    names = "{'rank': 0, 'size': 1, 'local_rank': 0, 'host': 'here'}"
    watched = f"launcher=lambda: origin.parent, log_folder=Path({str(tmp_path)!r}), names={names}"
    job = command(line, watched=watched, words="is_shown_to_the_end=False")
    launcher = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), *job], stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert launcher.returncode == 0, launcher.stderr
    assert launcher.stderr.splitlines()[-1] == "runner: SIGTERM: saved step-7"
    (state,) = read_states(tmp_path)
    assert (state.exit_code, state.what, state.ended_by) == (75, "SIGTERM: saved step-7", "SIGTERM")


@pytest.mark.parametrize("before", ["", "del os.pidfd_open"], ids=["", "before Linux 5.3"])
def test_it_ends_when_its_launcher_has_ended(before: str) -> None:
    with (
        subprocess.Popen(["sleep", "300"]) as launcher,
        guarded("start_children(); time.sleep(300)", before, f"launcher=lambda: {launcher.pid}") as process,
    ):
        worker = worker_of(process)
        children = children_of(process)
        children[2].kill()  # it would hold the pipes
        launcher.kill()
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 1
        assert "the launcher has ended without its ranks" in errors
        assert not psutil.wait_procs([worker, *children[:2]], timeout=LIMIT)[1]
