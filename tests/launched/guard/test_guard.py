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


def worker_is_ready(process: subprocess.Popen[str]) -> None:
    """Wait until the worker has printed so."""
    worker_of(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


# The worker's line, what goes before it, what is watched; the exit code, and what is printed ("": nothing; None: perhaps something).
SLOW_FORK = "os.register_at_fork(after_in_parent=lambda: time.sleep(1))"
FAILS = "lifeline.tell(Fails(code=9, everywhere=False))"
ENDS = {
    **{f"exit({code})": (f"sys.exit({code})", "", "", code, "") for code in (0, 255)},
    **{f"exit({code})": (f"sys.exit({code})", "", "", code, f"nobody came ({code})") for code in (1, 7)},
    "the ends of children are ignored": ("sys.exit(7)", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "", 7, "nobody came (7)"),
    "a failed worker hangs": (f"{FAILS}; time.sleep(300)", "", "", 9, ""),
    "the clock stops when the ranks have met": ("lifeline.tell(Met(None)); time.sleep(4); sys.exit(5)", "", "rendezvous_timeout=3", 5, None),
    "nobody comes": ("lifeline.tell(Seeks()); time.sleep(300)", "", "rendezvous_timeout=3", 1, "nobody came (None)"),
    "it does not start": ("time.sleep(300)", "", "rendezvous_timeout=3", 1, "has not started in time; allow more with --timeout"),
    "its place is told": ("time.sleep(300)", "", "rendezvous_timeout=3", 1, "it was in <module> (<string>:1)"),
    "it starts slowly, as its file system may hang": ("time.sleep(9); lifeline.tell(Met(None))", "", "rendezvous_timeout=14", 0, "has not started yet: it is in <module> (<string>:1)"),
    "it waits for the others": ("lifeline.tell(Seeks()); time.sleep(9)", "", "rendezvous_timeout=14", 0, ""),
    "it is stopped before it has met the others": ("os.kill(os.getpid(), signal.SIGSTOP)", "", "", 70, "stopped by a signal (SIGSTOP) for 10 s: rank 0 in <module> (<string>:1)"),
    "a library ends it before the rendezvous": ("os._exit(16)", "", "", 16, "rank 0 of 1 on host here: nobody came (16)"),
    "a library ends it later": ("lifeline.tell(Met(None)); os._exit(16)", "", "", 16, ""),
    "it has met and ended before its guard looked": ("lifeline.tell(Met(None)); os._exit(16)", SLOW_FORK, "", 16, ""),
    "it has failed and ended before its guard looked": (f"{FAILS}; os.kill(os.getpid(), 9)", SLOW_FORK, "", 9, ""),
    "a signal to the worker alone": ("os.kill(os.getpid(), 15)", "", "", 143, "rank 0 of 1 on host here: killed by SIGTERM"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "", "", 137, "rank 0 of 1 on host here: killed by SIGKILL"),
    "SIGSEGV": ("os.kill(os.getpid(), 11)", "", "", 139, "rank 0 of 1 on host here: killed by SIGSEGV"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "before", "watched", "code", "printed"), ENDS.values(), ids=ENDS)
def test_how_a_worker_ends_is_passed_on(line: str, before: str, watched: str, code: int, printed: str | None) -> None:
    with guarded(line, before, watched) as process:
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == code, errors
        assert printed is None or (errors.count(printed) == 1 if printed else errors == "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP", "SIGINT"])
def test_signals_are_passed_on(name: str) -> None:
    line = f"signal.signal(signal.{name}, lambda *_: os._exit(42)); print('ready', flush=True); time.sleep(300)"
    with guarded(line) as process:
        worker_is_ready(process)
        process.send_signal(signal.Signals[name])
        assert process.wait(timeout=LIMIT) == 42


def test_the_worker_dies_with_its_guard() -> None:
    with guarded("time.sleep(300)") as process:
        worker = worker_of(process)
        process.kill()
        process.wait()
        assert worker.wait(timeout=LIMIT) is not None or not worker.is_running()


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


def test_a_worker_that_ends_by_itself_is_not_said_to_be_ended() -> None:
    line = "signal.signal(signal.SIGTERM, signal.SIG_IGN); lifeline.tell(Fails(code=2, everywhere=False)); print(1, flush=True); time.sleep(1)"
    with guarded(line) as process:
        worker_of(process)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT)
        assert (process.returncode, errors) == (2, "")


def test_who_ended_it_is_said() -> None:
    line = "lifeline.tell(Met(None)); lifeline.board.step(1, 9, 1, 1); print('ready', flush=True); time.sleep(300)"
    with guarded(line, watched=f"launcher=lambda: {os.getpid()}") as process:
        worker_is_ready(process)
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


@pytest.mark.parametrize(
    ("begin", "words"), [("lifeline.board.enter('training'); ", ""), ("", "size=2")], ids=["training", "script"]
)
def test_ctrl_c_ends_ranks_that_do_not_notice_it(begin: str, words: str) -> None:
    """They wait in C, for example: Hydra sends nothing more after SIGINT."""
    with guarded(f"lifeline.tell(Met(None)); {begin}ignore_interrupts()", words=words) as process:
        worker_is_ready(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT) == 130


def test_ctrl_c_leaves_a_script_its_own_end() -> None:
    with guarded("lifeline.tell(Met(None)); sys.exit(6 + interrupts(1.0))", words="size=2") as process:
        worker_is_ready(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT) == 7


def test_output_that_nobody_takes_does_not_keep_the_guard() -> None:
    """A launcher that was stopped, or a pager behind it, no longer reads."""
    with guarded("fill_errors(); os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(timeout=LIMIT) == 137
