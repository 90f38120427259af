"""The exchange over sockets, with several processes' worth of threads in one process."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from runner.base.errors import RefusedError, RendezvousError, UsageError
from runner.launch.detect import detect
from runner.rendezvous.methods.sockets import by_hosts, candidate_ports
from runner.rendezvous.records.exchange import Exchanged, exchange_records, serve_records
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.records.records import flat
from runner.rendezvous.transport.client import connect
from runner.rendezvous.transport.endpoint import listen, port_of
from runner.rendezvous.transport.secret import job_key


def candidates(*ports: int) -> Any:
    return lambda: iter([(socket.AF_INET, ("127.0.0.1", port)) for port in ports])


def fetch(rank: int, *ports: int, key: bytes = b"job", timeout: float = 10.0) -> Exchanged:
    return exchange_records(candidates(*ports), RankRecord(rank=rank), key, timeout, "rank 0")[0]


@pytest.mark.parametrize("size", [1, 2, 17])
def test_all_ranks_get_all_records_in_order(size: int) -> None:
    listener = listen(loopback=True)
    with listener, ThreadPoolExecutor(size + 1) as pool:
        hosted = pool.submit(serve_records, listener, RankRecord(rank=0), size, b"job", 10.0)
        visits = [pool.submit(fetch, rank, port_of(listener)) for rank in reversed(range(1, size))]
        wanted = [RankRecord(rank=rank) for rank in range(size)]
        assert list(hosted.result().records) == wanted
        assert all(list(v.result().records) == wanted for v in visits)


def test_another_jobs_rank_0_is_passed_by() -> None:
    ours, theirs = listen(loopback=True), listen(loopback=True)
    with ours, theirs, ThreadPoolExecutor(3) as pool:
        other = pool.submit(serve_records, theirs, RankRecord(rank=0), 2, b"another job", 10.0)
        own = pool.submit(serve_records, ours, RankRecord(rank=0), 2, b"job", 10.0)
        assert len(fetch(1, port_of(theirs), port_of(ours)).records) == 2
        assert len(own.result().records) == 2
        fetch(1, port_of(theirs), key=b"another job")
        assert len(other.result().records) == 2


def test_absent_ranks_are_named_when_the_time_is_over() -> None:
    with listen(loopback=True) as listener, ThreadPoolExecutor(1) as pool:
        visitor = pool.submit(fetch, 2, port_of(listener))
        with pytest.raises(RendezvousError, match="2 of 4 ranks met within 1 s; absent: ranks 1, 3"):
            serve_records(listener, RankRecord(rank=0), 4, b"job", 1.0)
        with pytest.raises(RendezvousError, match="rank 0 was found, but ended"):
            visitor.result()


@pytest.mark.parametrize("is_closed", [True, False])
def test_where_nobody_answers_at_the_port_the_search_ends_in_time(is_closed: bool) -> None:
    """A program that accepts and is silent is no firewall."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = port_of(server)
        if is_closed:
            server.close()
        with pytest.raises(
            RendezvousError, match=r"rank 0 within 1 s \(last tried 127.0.0.1:\d+: .*see whether rank 0 has"
        ):
            fetch(1, port, timeout=2.0)


def full_server() -> tuple[socket.socket, list[socket.socket]]:
    """A server that no longer answers who connects, as behind a firewall: its queue is full. And what fills it."""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    filling = [socket.socket() for _ in range(4)]
    for one in filling:
        one.setblocking(False)
        one.connect_ex(server.getsockname())
    return server, filling


def test_where_nothing_answers_a_firewall_is_named() -> None:
    """In time, also where there are many such addresses."""
    servers = [full_server() for _ in range(20)]
    tried = []

    def each_in_turn() -> Iterator[tuple[socket.AddressFamily, Any]]:
        for server, _ in servers:
            tried.append(server)
            yield socket.AF_INET, server.getsockname()

    with pytest.raises(
        RendezvousError, match=r"within 1 s \(last tried \S+: timed out\); a firewall may block 127.0.0.1"
    ):
        exchange_records(each_in_turn, RankRecord(rank=1), b"job", 2.0, "rank 0")
    assert len(tried) < 5  # each takes the second that is left
    for server, filling in servers:
        for one in (server, *filling):
            one.close()


def test_a_rank_0_that_does_not_know_the_secret_is_named_whatever_was_tried_last() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = port_of(server)
    with listen(loopback=True) as listener, ThreadPoolExecutor(1) as pool:
        hosted = pool.submit(serve_records, listener, RankRecord(rank=0), 2, b"another", 3.0)
        with pytest.raises(
            RendezvousError,
            match=rf"at 127.0.0.1:{port_of(listener)} a runner answers that does not know .* to one text on all hosts$",
        ):
            fetch(1, port_of(listener), closed, timeout=2.0)
        with pytest.raises(RendezvousError, match=r"absent: rank 1; \d+ times a runner came .* RUNNER_SECRET"):
            hosted.result()


def test_two_processes_of_one_rank_are_refused() -> None:
    with listen(loopback=True) as listener, ThreadPoolExecutor(2) as pool:
        first = pool.submit(fetch, 1, port_of(listener))
        second = pool.submit(fetch, 1, port_of(listener))
        with pytest.raises(RefusedError, match="two processes are rank 1"):
            serve_records(listener, RankRecord(rank=0), 3, b"job", 10.0)
        for visitor in (first, second):
            with pytest.raises(RefusedError, match="two processes are rank 1"):
                visitor.result()


def test_a_process_that_comes_again_is_the_same() -> None:
    """One that was not answered in time gives up and connects again; both records arrive."""
    record = RankRecord(rank=1, host_key="here", pid=7)
    with listen(loopback=True) as listener, ThreadPoolExecutor(1) as pool:
        hosted = pool.submit(serve_records, listener, RankRecord(rank=0), 3, b"job", 10.0)
        for _ in range(2):
            with connect(socket.AF_INET, listener.getsockname(), b"job", 1, 10.0) as client:
                client.send(flat(record), 10.0)
        assert fetch(2, port_of(listener)).records[1] == record
        assert len(hosted.result().records) == 3


def test_candidate_ports_are_alike_on_all_ranks_and_differ_between_jobs() -> None:
    assert candidate_ports("slurm/0/12/0") == candidate_ports("slurm/0/12/0")
    starts = {candidate_ports(f"slurm/0/{job}/0")[0] for job in range(50)}
    assert len(starts) > 45
    assert all(15000 <= port < 32768 for port in candidate_ports("x"))


def test_a_rank_that_waits_looks_each_name_up_once_and_finds_rank_0_on_any_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"127.0.1.{number}" for number in range(1, 101)]
    step = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": ",".join(names),
    }
    context = detect(step | {"SLURM_PROCID": "1", "RUNNER_SECRET": "x"})
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def counted(host: str, *arguments: Any, **named: Any) -> Any:
        looked_up.append(host)
        return real(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", counted)
    port = candidate_ports(context.job_id or "")[3]
    with socket.create_server((names[-1], port)) as listener, ThreadPoolExecutor(1) as pool:
        hosted = pool.submit(serve_records, listener, RankRecord(rank=0), 2, job_key(context), 60.0)
        records, endpoint = by_hosts(context, RankRecord(rank=1), 60.0)
        assert len(hosted.result().records) == len(records) == 2
    assert (endpoint.host, endpoint.port) == (names[-1], port)
    searched = [name for name in looked_up if name != endpoint.host]
    assert searched == names[:-1]  # each once, the first host first


def test_a_rank_0_on_another_host_than_the_only_one_that_is_known() -> None:
    """horovodrun tells its ranks where it runs itself, and no other host."""
    horovodrun = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    context = detect(horovodrun | {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "192.0.2.1", "RUNNER_SECRET": "x"})
    with pytest.raises(UsageError, match=r"the others look for rank 0 at 192\.0\.2\.1, as horovodrun"):
        by_hosts(context, RankRecord(rank=0), 2.0)


def test_a_rank_0_that_is_slow_to_answer_gets_more_time() -> None:
    """One that thousands of ranks have come to at once: who has given up too early waits longer the next time."""

    class Busy(socket.socket):
        def accept(self) -> Any:
            time.sleep(1.2)
            return super().accept()

    with Busy(socket.AF_INET, socket.SOCK_STREAM) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        hosted = pool.submit(serve_records, listener, RankRecord(rank=0), 2, b"job", 100.0)
        assert len(fetch(1, port_of(listener), timeout=100.0).records) == 2
        assert len(hosted.result().records) == 2
