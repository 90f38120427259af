"""Nobody from outside can end, hang or steer the ranks' rendezvous: rank 0's port, and what answers in its place."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.base.errors import UsageError
from runner.launch.detect import detect
from runner.rendezvous.methods.local import listen_on_name, named
from runner.rendezvous.records.exchange import exchange_records, serve_records
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.transport.client import Client, connect
from runner.rendezvous.transport.endpoint import listen, port_of
from runner.rendezvous.transport.protocol import ANSWER, GREETING, ProtocolError, Stream, WrongJobError, greeting
from runner.rendezvous.transport.secret import job_key
from runner.rendezvous.transport.server import Server
from tests.launching import path_of, run
from tests.polling import LIMIT, poll_until

KEY = b"the job's"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    """A server that answers each rank's word, for as long as this module's tests hammer at it."""
    over = threading.Event()
    with listen(loopback=True) as listener, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            with Server(listener, KEY, 3, 1 << 16) as server:
                while not over.is_set():
                    for peer, message in server.receive(0.05):
                        peer.send(message, within=5.0)

        answering = pool.submit(answer)
        yield listener.getsockname()
        over.set()
        answering.result()


@pytest.mark.parametrize("user", [None, 65534], ids=["own", "another"])
def test_a_socket_by_name_is_for_its_own_user(user: int | None) -> None:
    """No folder keeps others from such a name, so neither side believes another user, whatever key it has."""
    if user is not None and os.geteuid() != 0:
        pytest.skip("needs root: it connects as another user")
    name = f"test-{os.getpid()}-{user}"
    listener = listen_on_name(name)
    assert listener is not None
    assert listen_on_name(name) is None  # it is taken
    told, tells = os.pipe()
    if (visitor := os.fork()) == 0:
        if user is not None:
            os.setuid(user)
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as visit:
            visit.settimeout(60)
            visit.connect(named(name))
            visit.sendall(greeting())
            os.write(tells, b"%d" % len(visit.recv(100)))
        os._exit(0)
    os.close(tells)
    with listener, listen(loopback=True) as first, Server(first, KEY, 2, 100, [listener]) as server:
        while not select.select([told], [], [], 0)[0]:
            list(server.receive(0.05))
    assert os.read(told, 100) in ([b"%d" % ANSWER] if user is None else [b"", b"0"])
    os.close(told)
    os.waitpid(visitor, 0)


def goes_on(address: Any) -> bool:
    """Whether a rank of the job is still let in and answered."""
    with connect(socket.AF_INET, address, KEY, 1, 20.0) as client:
        client.send("hello", 20.0)
        return bool(client.receive(20.0) == "hello")


def reset(connection: socket.socket) -> None:
    """End a connection by RST, as a port scanner does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


LENGTHS = st.integers(0, 2**32 - 1).map(lambda length: struct.pack("!I", length))
PIECES = st.one_of(
    st.binary(max_size=200),
    LENGTHS,
    st.just(greeting()),
    st.just(b"[" * 200_000),
    st.just(b"GET / HTTP/1.1\r\n\r\n"),
    st.just(b'\x00\x00\x00\x1b{"token": "job", "rank": 1}'),
    st.just(Stream(b"").pack({"rank": "x"})),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(PIECES, max_size=4), ends=st.sampled_from([socket.socket.close, reset, None]))
def test_whatever_a_stranger_says_and_however_it_leaves(server: Any, pieces: list[bytes], ends: Any) -> None:
    stranger = socket.create_connection(server)
    with contextlib.suppress(OSError):  # it may have been disconnected before it has said all
        for piece in pieces:
            stranger.sendall(piece)
    if ends is not None:
        ends(stranger)
    assert goes_on(server)
    stranger.close()


@pytest.mark.parametrize("rank", [0, 3, 77, 2**32 - 1])
def test_a_rank_that_is_none_of_the_jobs_is_disconnected(server: Any, rank: int) -> None:
    with connect(socket.AF_INET, server, KEY, rank, 20.0) as client, pytest.raises((ProtocolError, OSError)):
        client.receive(20.0)
    assert goes_on(server)


def test_thousands_of_idle_connections(server: Any) -> None:
    """More than the process may open at once: the oldest silent ones make room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, path_of("idle_connections"), str(server[1]), KEY.hex()]
    idle = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert idle.stdout is not None
        assert idle.stdout.readline() == "3000 idle, a rank receives hello\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        idle.communicate()
    assert goes_on(server)


def test_silent_visitors_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.rendezvous.transport.server._PROVING", 0.2)
    with listen(loopback=True) as listener, Server(listener, KEY, 2, 100) as server:
        silent = socket.create_connection(listener.getsockname())
        slow = socket.create_connection(listener.getsockname())
        slow.sendall(greeting()[: GREETING - 1])

        def is_disconnected(stranger: socket.socket) -> bool:
            list(server.receive(0.05))
            with contextlib.suppress(BlockingIOError):
                return stranger.recv(1) == b""
            return False

        for stranger in (silent, slow):
            stranger.setblocking(False)
            poll_until(lambda stranger=stranger: is_disconnected(stranger), LIMIT, "the visitor is disconnected")
            stranger.close()


def test_more_ranks_than_files_may_be_opened_is_said() -> None:
    done = run(sys.executable, path_of("too_many_ranks"))
    assert "rank 0 may not open as many files as 60 ranks need" in done.stdout, done.stdout + done.stderr


class Squatter:
    """Sits on a port that the job's name tells, and answers whoever comes as well as it can without the key."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._serve, args=(answer,), daemon=True).start()

    def _serve(self, answer: Callable[[socket.socket], None]) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.server.accept()
                with connection, contextlib.suppress(OSError):
                    answer(connection)


def echo(connection: socket.socket) -> None:
    connection.sendall(connection.recv(4096) * 4)


def say_nothing(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def claim_without_the_key(connection: socket.socket) -> None:
    connection.sendall(greeting() + os.urandom(32))
    connection.sendall(Stream(b"").pack({"records": {"size": 2, "fields": {}}, "reached_by": ["10.6.6.6"]}))


@pytest.mark.parametrize("answer", [echo, say_nothing, claim_without_the_key])
def test_whoever_sits_on_the_port_is_not_believed(answer: Callable[[socket.socket], None]) -> None:
    squatter = Squatter(answer)
    with squatter.server, listen(loopback=True) as listener, ThreadPoolExecutor(1) as pool:
        hosted = pool.submit(serve_records, listener, RankRecord(rank=0), 2, KEY, 20.0)
        ports = (squatter.port, port_of(listener))
        candidates = [(socket.AF_INET, ("127.0.0.1", port)) for port in ports]
        exchanged, reached = exchange_records(lambda: iter(candidates), RankRecord(rank=1), KEY, 20.0, "rank 0")
        assert (len(exchanged.records), reached[1]) == (2, port_of(listener))
        hosted.result()


def test_one_who_stands_between_the_two_changes_nothing_unnoticed() -> None:
    """It hands on what both say, so that both prove the key to one another, and flips a bit of rank 0's message."""
    with listen(loopback=True) as listener, Server(listener, KEY, 2, 1 << 16) as server, ThreadPoolExecutor(1) as pool:

        def between(connection: socket.socket) -> None:
            with socket.create_connection(listener.getsockname()) as to_host:
                to_host.sendall(connection.recv(4096))
                connection.sendall(to_host.recv(4096))
                to_host.sendall(connection.recv(4096))
                spoiled = bytearray(to_host.recv(4096))
                spoiled[-2] ^= 1
                connection.sendall(spoiled)

        squatter = Squatter(between)
        with squatter.server:
            coming = pool.submit(connect, socket.AF_INET, ("127.0.0.1", squatter.port), KEY, 1, 20.0)
            while not server.ranks:
                list(server.receive(0.05))
            assert server.ranks[1].send(["truth"], within=5.0)
            with coming.result() as client, pytest.raises(WrongJobError):
                client.receive(20.0)


def key_of(job: str, **environment: str) -> bytes:
    return job_key(
        detect({"SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", **environment})
    )


def test_the_secret_is_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:  # ranks of a first job, all at once
        keys = set(pool.map(lambda _: key_of("1", **home), range(8)))
    assert len(keys) == 1
    assert key_of("2", **home) not in keys, "another job's"
    assert key_of("1", XDG_CONFIG_HOME=str(tmp_path / "another")) not in keys
    path = tmp_path / "torch-mpi-runner" / "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["secret"]
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others can read or change"):
        key_of("1", **home)
    assert key_of("1", RUNNER_SECRET="said", **home) == key_of("1", RUNNER_SECRET="said")


def test_a_home_that_cannot_be_written_does_not_end_a_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert key_of("1", XDG_CONFIG_HOME=str(tmp_path / "file")) == key_of("1", RUNNER_SECRET="")


@contextlib.contextmanager
def server_with_rank_1() -> Iterator[tuple[Server, Client]]:
    """A server, and the connection of a rank that has proved itself."""
    with listen(loopback=True) as listener, ThreadPoolExecutor(1) as pool, Server(listener, KEY, 2, 1 << 16) as server:
        client = pool.submit(connect, socket.AF_INET, listener.getsockname(), KEY, 1, 20.0)

        def has_come() -> bool:
            list(server.receive(0.05))
            return 1 in server.ranks

        poll_until(has_come, LIMIT, "rank 1 is there")
        with client.result() as rank:
            yield server, rank


def test_a_rank_that_takes_no_message_is_disconnected() -> None:
    """What it has got of one would be the beginning of the next."""
    with server_with_rank_1() as (server, _):
        server.send(1, "x" * (64 << 20), within=0.5)
        assert 1 not in server.ranks
        server.send(1, "more", within=0.5)  # to nobody


def test_what_a_rank_sent_before_it_left_is_received() -> None:
    """Also where the server has something for it meanwhile, which it cannot send any more."""
    with server_with_rank_1() as (server, rank):
        server.send(1, "not read, so its end is a reset", within=5.0)
        assert select.select([rank.connection], [], [], 20)[0]
        rank.send("it leaves", 5.0)
        rank.connection.close()
        for _ in range(3):
            server.send(1, "to nobody", within=5.0)
        received: list[str] = []

        def has_left() -> bool:
            received.extend(message for _, message in server.receive(0.05))
            return 1 not in server.ranks

        poll_until(has_left, LIMIT, "rank 1 has left")
        assert received == ["it leaves"]
