"""Processes of one launch on a host share an agent and an importer; whichever is killed, nothing is left and no exit code is lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from runner.guard.process.wire import accept_own
from tests.launched.guard.test_guard import command
from tests.polling import LIMIT, poll_until

WAITS = "start_children(waits=False); lifeline.tell(Met(None)); print('ready', flush=True); time.sleep(300)"


@dataclass(frozen=True)
class Launch:
    """Processes that this one has started, as a launcher does."""

    proxies: list[subprocess.Popen[str]]

    def workers(self) -> list[psutil.Process]:
        """Those of which the lines run."""
        found = []
        for proxy in self.proxies:
            assert proxy.stdout is not None
            found.append(psutil.Process(int(proxy.stdout.readline().split()[1])))
        return found

    def ends(self) -> list[tuple[int, str]]:
        """The exit codes, and what was printed to standard error."""
        found = []
        for proxy in self.proxies:
            _, errors = proxy.communicate(timeout=LIMIT)
            found.append((proxy.returncode, errors))
        return found


@contextmanager
def launched(
    *lines: str, variables: Mapping[int, Mapping[str, str]] = {}, watched: str = ""
) -> Iterator[Launch]:  # it is not changed
    """One process per line; ``variables`` of some of them. What they have started is gone after the context."""
    launch = Launch(
        [
            subprocess.Popen(
                command(line, watched=watched),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env=os.environ | {"RANK": str(number)} | variables.get(number, {}),
            )
            for number, line in enumerate(lines)
        ]
    )
    try:
        yield launch
    finally:
        for proxy in launch.proxies:
            for one in _family(proxy.pid):
                one.kill()
            proxy.kill()
            proxy.communicate()


def _family(process: int) -> list[psutil.Process]:
    try:
        return psutil.Process(process).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def children_of(worker: psutil.Process) -> list[psutil.Process]:
    """What ``start_children`` has started, once each is what it is to be."""

    def found() -> list[psutil.Process]:
        children = worker.children()
        return children if any("301" in child.cmdline() for child in children) else []

    return poll_until(found, LIMIT, "it has children")


def named(workers: list[psutil.Process], name: str) -> list[psutil.Process]:
    """The processes of this name above workers, each once."""
    above = {one.pid: one for worker in workers for one in worker.parents() if one.name() == name}
    return list(above.values())


def test_they_share_an_agent_and_each_has_its_own_exit_code() -> None:
    line = "time.sleep(1); sys.exit(int(os.environ['OMPI_COMM_WORLD_RANK']))"
    with launched(*[line] * 3, variables={rank: {"OMPI_COMM_WORLD_RANK": str(rank)} for rank in range(3)}) as launch:
        workers = launch.workers()
        assert len(named(workers, "runner-agent")) == len(named(workers, "runner-importer")) == 1
        assert [code for code, _ in launch.ends()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("variables", "agents"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"OMP_NUM_THREADS": "7"}, 2),
        ({"PMIX_NAMESPACE": "b"}, 2),
    ],
)
def test_who_differs_in_what_is_read_at_imports_has_an_agent_of_its_own(variables: dict[str, str], agents: int) -> None:
    name, value = next(iter(variables.items()))
    line = f"print(os.environ.get({name!r}), flush=True); time.sleep(300)"
    with launched(line, line, variables={1: variables}) as launch:
        assert len(named(launch.workers(), "runner-agent")) == agents
        told = [proxy.stdout.readline() for proxy in launch.proxies if proxy.stdout]
        assert told == ["None\n", f"{value}\n"]


@pytest.mark.parametrize("victim", ["runner-agent", "runner-importer"])
def test_when_agent_or_importer_is_killed_each_rank_ends_and_nothing_is_left(victim: str) -> None:
    with launched(WAITS, WAITS) as launch:
        workers = launch.workers()
        started = [one for worker in workers for one in children_of(worker)]
        for one in started:
            if "301" in one.cmdline():  # in a session of its own: it stays, and would hold the pipes
                one.kill()
        (killed,) = named(workers, victim)
        killed.kill()
        for code, errors in launch.ends():
            assert code != 0
            assert "killed by SIGKILL" in errors
        assert not psutil.wait_procs([*workers, *started], timeout=LIMIT)[1]


def test_when_a_proxy_is_killed_its_rank_ends_and_the_others_do_not() -> None:
    line = "time.sleep(300 if 'WAITS' in os.environ else 3); sys.exit(5)"
    with launched(line, line, variables={0: {"WAITS": ""}}) as launch:
        first, second = launch.workers()
        assert len(named([first, second], "runner-agent")) == 1
        launch.proxies[0].kill()
        assert not psutil.wait_procs([first], timeout=LIMIT)[1]
        assert launch.proxies[1].wait(LIMIT) == 5


def test_sixty_four_ranks_have_one_agent(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    waits = f"[time.sleep(0.2) for _ in iter(lambda: __import__('os').path.exists({str(seen)!r}), True)]"
    with launched(*[waits] * 64) as launch:
        assert len(named(launch.workers(), "runner-agent")) == 1
        seen.touch()
        assert {code for code, _ in launch.ends()} == {0}


def test_a_signal_before_the_worker_is_there_is_not_lost() -> None:
    with launched("time.sleep(300)") as launch:
        launch.proxies[0].send_signal(signal.SIGTERM)  # at once
        assert launch.proxies[0].wait(LIMIT) in (-signal.SIGTERM, 143, 1)


def test_a_process_of_another_user_is_not_taken_for_a_rank(tmp_path: Path) -> None:
    """It can see the name. (As root only: nobody else can become another user.)"""
    attack = tmp_path / "attack.py"
    attack.write_text(
        "import os, socket, sys\n"
        "if os.geteuid() == 0:\n    os.setuid(65534)\n"
        "else:\n    sys.exit()\n"
        "connection = socket.socket(socket.AF_UNIX)\n"
        "connection.settimeout(20)\n"
        "connection.connect(b'\\0' + sys.argv[1].encode())\n"
        "sys.exit(len(connection.recv(100)))\n"  # nothing is told, and the connection is closed
    )
    with launched("time.sleep(300)") as launch:
        (agent,) = named(launch.workers(), "runner-agent")
        name = next(one.laddr for one in agent.net_connections("unix") if "torch-mpi-runner" in one.laddr)
        python = ["/usr/bin/env", "-i", "python3"] if os.geteuid() == 0 else [sys.executable]
        tried = subprocess.run([*python, str(attack), name.lstrip("@\0")], capture_output=True, text=True, timeout=60)
        assert tried.returncode == 0, tried.stderr


def test_connections_are_taken_in_bounded_numbers_and_other_users_dropped_unread() -> None:
    """Another user can connect as fast as an agent accepts, which did nothing else then. (As root: others cannot become another user.)"""
    name = f"\0torch-mpi-runner-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as clients:
        listener.bind(name)
        listener.listen(4096)
        listener.setblocking(False)
        assert accept_own(listener) == []

        def connect(count: int) -> None:
            for _ in range(count):
                clients.enter_context(socket.socket(socket.AF_UNIX)).connect(name)

        connect(600)
        taken = [accept_own(listener) for _ in range(4)]
        assert [len(found) for found in taken] == [256, 256, 88, 0]
        for connection in itertools.chain(*taken):
            connection.close()
        if os.geteuid() == 0:
            os.seteuid(65534)
            try:
                connect(300)
            finally:
                os.seteuid(0)
            connect(1)
            assert accept_own(listener) == []
            (own,) = accept_own(listener)
            own.close()


def test_threads_of_a_program_have_the_stacks_that_python_gives_them() -> None:
    with launched("import threading; print('size', threading.stack_size(), flush=True)") as launch:
        launch.workers()
        assert launch.proxies[0].stdout is not None
        assert launch.proxies[0].stdout.readline() == "size 0\n"


def test_what_a_program_has_forked_does_not_keep_its_proxy_when_the_agent_is_killed() -> None:
    line = "os.fork() or time.sleep(300); print('ready', flush=True); time.sleep(300)"
    with launched(line) as launch:
        workers = launch.workers()
        assert launch.proxies[0].stdout is not None
        launch.proxies[0].stdout.readline()
        (agent,) = named(workers, "runner-agent")
        agent.kill()
        assert launch.proxies[0].wait(LIMIT) == 1


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGHUP"])
def test_an_ignored_signal_stays_ignored(name: str) -> None:
    line = (
        f"print('ready', flush=True); time.sleep(2); sys.exit(6 + (signal.getsignal(signal.{name}) == signal.SIG_IGN))"
    )
    shell = ["sh", "-c", f"trap '' {name[3:]}; exec \"$@\"", "sh", *command(line)]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.readline()
        process.send_signal(signal.Signals[name])
        assert process.wait(LIMIT) == 7


def test_each_rank_has_the_standard_input_that_its_process_had() -> None:
    line = "print('input', sys.stdin and sys.stdin.readline().strip(), flush=True)"
    both = f"{shlex.join(command(line))} 0<&- & p=$!; echo text | {shlex.join(command(line))}; wait $p"
    done = subprocess.run(["bash", "-c", both], stdout=subprocess.PIPE, text=True, timeout=LIMIT)
    assert sorted(one for one in done.stdout.splitlines() if one.startswith("input")) == ["input None", "input text"]


def test_a_rank_whose_proxy_is_killed_with_its_launcher_gets_no_time_to_save(tmp_path: Path) -> None:
    """Hydra kills its processes when its mpirun is gone, and ends."""
    saves = f"signal.signal(signal.SIGTERM, lambda *_: (time.sleep(3), open({str(tmp_path / 'saved')!r}, 'w').close()))"
    line = f"{saves}; lifeline.tell(Met(None)); print('ready', flush=True); [time.sleep(1) for _ in range(300)]"
    with (
        subprocess.Popen(["sleep", "300"]) as launcher,
        launched(line, watched=f"launcher=lambda: {launcher.pid}") as launch,
    ):
        workers = launch.workers()
        assert launch.proxies[0].stdout is not None
        launch.proxies[0].stdout.readline()
        (agent,) = named(workers, "runner-agent")
        agent.suspend()
        launch.proxies[0].kill()
        launcher.kill()
        agent.resume()
        assert not psutil.wait_procs([*workers, agent], timeout=LIMIT)[1]
    assert not (tmp_path / "saved").exists()
