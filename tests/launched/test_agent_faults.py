"""What can go wrong with the agent that the ranks of a host share, and with its import."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.launching import (
    RUNNER,
    before_path,
    clean_environment,
    finish,
    mpirun,
    ok,
    one_rank_each,
    own_lines,
    path_of,
    run,
    runner,
    start,
    under_mpirun,
)
from tests.polling import LIMIT, poll_until
from tests.processes import left_of
from tests.results import refused

TAKEN = ["silent", "deaf", *(["other"] if os.geteuid() == 0 else [])]  # by another user's process


def test_a_job_that_is_ended_while_it_imports_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(300)\n")
    (tmp_path / "script.py").touch()
    job = under_mpirun(2, *RUNNER, "--preload", "slow_import", str(tmp_path / "script.py"))
    launcher = start(*job, cwd=tmp_path, PYTHONPATH=before_path(tmp_path))
    poll_until((tmp_path / "importing").exists, LIMIT, "the importer imports", launcher)
    launcher.send_signal(signal.SIGINT)
    done = finish(launcher)
    assert done.returncode != 0
    assert "rank 0 of 2" in done.stderr
    assert " from the launcher: the job was ended" in done.stderr
    assert left_of(tmp_path) == []


@pytest.mark.parametrize("how", TAKEN)
def test_ranks_start_where_something_else_has_the_agents_name(how: str) -> None:
    """Soon: it has an agent's name, and is none of their launcher's processes."""
    job = [path_of("name_is_taken"), how, "--share-import", "off", path_of("says_its_rank")]
    done = ok(mpirun(2, sys.executable, *job))
    told = [line for line in done.stderr.splitlines() if "has not answered for 3 s, so this rank has an agent" in line]
    assert len(told) == (0 if how == "other" else 2), done.stderr


def after(shell: str, *command: str) -> list[str]:
    """A rank's command, which bash starts after these lines of its."""
    return ["bash", "-c", f'{shell}; exec "$0" "$@"', *command]


def test_ranks_that_one_agent_has_no_room_for_have_others() -> None:
    command = [*RUNNER, "--share-import", "off", path_of("says_its_rank")]
    done = ok(mpirun(6, *after("ulimit -n 100", *command)))
    assert sorted(done.stdout.splitlines()) == [f"rank {rank}" for rank in range(6)]
    assert own_lines(done) == []


def test_too_few_open_files_for_a_rank_are_refused_in_a_line() -> None:
    done = mpirun(1, *after("ulimit -n 16", *RUNNER, path_of("says_its_rank")))
    told = "too many files are open for one more rank on this host; raise the limit of 16 (ulimit -n)"
    refused(done, f"runner: {told}", code=1)


def shown(*shells: str) -> list[dict[str, object]]:
    """What each rank has, which are started after these lines of bash."""
    command = [*RUNNER, path_of("shows_its_process")]
    done = ok(run(*one_rank_each(*(after(shell, *command) for shell in shells))))
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda one: str(one["rank"]))


def test_what_each_rank_has_of_its_own_is_given_to_its_worker() -> None:
    one, other = shown("umask 077; export OWN=1; taskset -pc 0 $$ >&2", "umask 007; export OWN=2; taskset -pc 1 $$ >&2")
    assert one["importer"] == other["importer"]
    assert (one["umask"], one["own"], one["affinity"]) == (0o077, "1", [0])
    assert (other["umask"], other["own"], other["affinity"]) == (0o007, "2", [1])


def test_ranks_whose_processes_differ_in_what_a_fork_keeps_share_nothing() -> None:
    threads, python = "export OMP_NUM_THREADS=2", 'exec "${0%/*}/python3" "$@"'
    one, *others = shown("true", "cd /", threads, "ulimit -c 7", python)
    assert len({rank["importer"] for rank in (one, *others)}) == 5
    values = {"folder": "/", "threads": "2", "core": str(7 * 1024), "python": "python3"}
    for other, (name, value) in zip(others, values.items(), strict=True):
        assert one[name] != other[name]
        assert str(other[name]).endswith(value)


@pytest.mark.parametrize("how", ["fork", "daemon"])
def test_what_a_worker_has_forked_ends_with_it_unless_it_has_a_session_of_its_own(how: str, tmp_path: Path) -> None:
    ok(runner(2, path_of("leaves_a_process"), how, cwd=tmp_path))
    for rank in range(2):
        number = int((tmp_path / f"left{rank}").read_text())
        if how == "daemon":
            psutil.Process(number).kill()  # raises an error if it has ended
        else:
            with contextlib.suppress(psutil.NoSuchProcess):  # the launcher may end first
                psutil.Process(number).wait(timeout=LIMIT)


def test_a_worker_that_becomes_another_program_has_that_ones_exit_code() -> None:
    assert runner(2, path_of("leaves_a_process"), "exec").returncode == 7


def test_a_debugger_reads_rank_0s_standard_input(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os\nvalue = 41\nif os.environ['RANK'] == '0':\n    breakpoint()\nprint('value', value, flush=True)\n"
    )
    job, typed = under_mpirun(2, *RUNNER, str(tmp_path / "script.py")), "value += 1\nc\n"
    done = ok(subprocess.run(job, input=typed, env=clean_environment(), capture_output=True, text=True, timeout=LIMIT))
    assert "value 42" in done.stdout  # after the debugger's prompt
    assert "value 41" in done.stdout.splitlines()


def test_a_debugger_on_a_terminal_goes_on_after_ctrl_z(tmp_path: Path) -> None:
    """The shell stops and continues the whole group: proxy, agent, importer and worker."""
    (tmp_path / "script.py").write_text("value = 41\nbreakpoint()\nraise SystemExit(value)\n")
    shell, terminal = pty.fork()
    if shell == 0:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], clean_environment(PS1="shell> "))
    try:
        typed = shlex.join([*RUNNER, str(tmp_path / "script.py")])
        for text, answer in [
            ("", "shell> "),
            (f"{typed}\n", "(Pdb) "),
            ("\x1a", "Stopped"),
            ("fg\n", "script.py"),
            ("value += 1\n", "(Pdb) "),
            ("c\n", "shell> "),
            ("echo code $?\n", "code 42"),
        ]:
            os.write(terminal, text.encode())
            read_until(answer, terminal)
    finally:
        os.close(terminal)  # ends what runs there, by SIGHUP
        os.waitpid(shell, 0)


def read_until(wanted: str, terminal: int) -> None:
    seen = ""
    while wanted not in seen:
        assert select.select([terminal], [], [], LIMIT)[0], f"no {wanted!r} after {seen!r}"
        seen += os.read(terminal, 4096).decode(errors="replace")


def test_ranks_whose_launcher_is_killed_before_an_agent_has_taken_them_end(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\ntime.sleep(300)\n")
    (tmp_path / "took").mkdir()
    command = [sys.executable, path_of("name_is_taken"), "silent", "--rendezvous", "file", str(tmp_path / "script.py")]
    launcher = start(*under_mpirun(2, *command), TOOK_IN=str(tmp_path / "took"))
    # Who is killed while Python itself starts does not know by whom it was started.
    poll_until(lambda: len(os.listdir(tmp_path / "took")) == 2, LIMIT, "two ranks", launcher)
    launcher.kill()
    finish(launcher)
    assert left_of(tmp_path, within=30) == []
