"""The link between the agents: what is told of one rank, all others receive; who leaves or is gone."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import make_dataclass
from typing import TypeVar

import pytest

from runner.base.errors import RendezvousError
from runner.guard.link.link import Address, Link
from runner.guard.link.messages import Apart, Failed, Gone, HostName, Left, Message, Show, Stacks
from runner.rendezvous.transport.endpoint import listen, port_of
from runner.rendezvous.transport.server import Server
from tests.launching import path_of
from tests.polling import LIMIT, poll_until

KEY = "00" * 32
FAILED = Failed(attempt=0, again=False, failure=None)
LEFT = Left()
Kind = TypeVar("Kind")
Hosts = tuple[Link, Link, int]


class Spoke:
    """A rank's end of its agent's link."""

    def __init__(self, link: Link, rank: int, port: int, *, size: int = 3, host: str = "127.0.0.1") -> None:
        self.link, self.rank, self.port = link, rank, port
        self.arrived: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        link.join(Address(host=host, port=port, key=KEY, rank=rank, size=size), self.deliver)

    def deliver(self, told: Sequence[tuple[int, Message]]) -> None:
        for one in told:
            self.arrived.put(one)

    def received(self) -> list[tuple[int, Message]]:
        """What has come since the last call."""
        return [self.arrived.get() for _ in range(self.arrived.qsize())]

    def receive(self, kind: type[Kind]) -> tuple[int, Kind]:
        """Wait for a message of this kind."""
        while True:
            rank, message = self.arrived.get(timeout=LIMIT)
            if isinstance(message, kind):
                return rank, message

    def tell(self, message: Message) -> None:
        self.link.tell(self.rank, message)

    def hears(self, told: tuple[int, Message]) -> None:
        """Wait for a message, after the rank that tells it."""
        while self.arrived.get(timeout=LIMIT) != told:
            pass

    def close(self, last: Message = LEFT) -> None:
        self.link.leave(self.rank, last)


def linked(listener: socket.socket | None = None) -> Link:
    """A host's end of the link; that of the hub has the listener."""
    link = Link()
    link.listener = listener
    return link


@pytest.fixture
def ends() -> Iterator[list[Spoke]]:
    """Those of three ranks, on three hosts."""
    with listen(loopback=True) as listener:
        made = [Spoke(linked(listener if rank == 0 else None), rank, port_of(listener)) for rank in range(3)]
        yield made
        for end in reversed(made):
            end.close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """The links of the hub's host and of another one, and the hub's port."""
    with listen(loopback=True) as listener:
        yield linked(listener), linked(), port_of(listener)


@pytest.mark.parametrize("rank", range(3))
def test_what_one_tells_all_others_receive(rank: int, ends: list[Spoke]) -> None:
    ends[rank].tell(FAILED)
    for other in ends:
        if other is not ends[rank]:
            assert other.receive(Failed) == (rank, FAILED)
    assert ends[rank].received() == []


def test_a_message_to_the_hub_goes_no_further(ends: list[Spoke]) -> None:
    ends[1].tell(Stacks(0, "x", []))
    ends[1].tell(FAILED)
    assert ends[0].receive(Stacks) == (1, Stacks(0, "x", []))
    assert ends[2].receive(object) == (1, FAILED)


def test_a_message_that_nobody_knows_is_left_out(ends: list[Spoke]) -> None:
    """As one of another version, which doctor lets take part."""
    for rank in (1, 0):
        ends[rank].tell(make_dataclass("Unknown", [])())
        ends[rank].tell(FAILED)
        for other in ends:
            if other is not ends[rank]:
                while (told := other.receive(object)) != (rank, FAILED):
                    assert told == (1, FAILED), "an earlier failure, which is told again to hosts that join late"


def test_who_leaves_is_not_missed_and_who_is_gone_is(ends: list[Spoke]) -> None:
    ends[1].close()
    command = [sys.executable, path_of("other_guard"), str(ends[1].port), KEY, "1"]
    with subprocess.Popen(command) as process:
        assert ends[2].receive(Failed)[0] == 1
        process.kill()
    for end in (ends[0], ends[2]):
        assert end.receive(Gone) == (1, Gone("its host's agent has ended, with the host or by a signal"))


def test_the_hub_that_leaves_is_not_missed(ends: list[Spoke]) -> None:
    for end in ends[1:]:
        end.tell(Show(0))
        assert ends[0].receive(Show)
    ends[0].close()
    poll_until(lambda: not ends[1].link.is_open and not ends[2].link.is_open, LIMIT, "the link is closed")
    assert [told for end in ends for told in end.received() if isinstance(told[1], Gone)] == []


def test_a_hub_that_may_open_no_more_files_keeps_its_connections(
    ends: list[Spoke], monkeypatch: pytest.MonkeyPatch
) -> None:
    poll_until(lambda: ends[0].link.present() == {0, 1, 2}, LIMIT, "all have joined")
    refused = threading.Event()

    def accept(*_: object) -> None:
        refused.set()
        raise RendezvousError("too many open files")

    monkeypatch.setattr(Server, "_accept", accept)
    with socket.create_connection(("127.0.0.1", ends[0].port)):
        assert refused.wait(LIMIT)
    ends[1].tell(FAILED)
    for other in (ends[0], ends[2]):
        assert other.receive(Failed) == (1, FAILED)


def test_a_guard_that_does_not_reach_rank_0s_says_so() -> None:
    end = Spoke(linked(), 1, 1, host="no-such-host.invalid")
    assert end.receive(Apart)[1].why.startswith("no-such-host.invalid:1: ")
    assert not end.link.is_open


def test_ranks_of_a_host_share_a_connection_and_each_is_told_what_concerns_it(hosts: Hosts) -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on another, whose agent is killed."""
    here, there, port = hosts

    def joined(rank: int) -> Spoke:
        return Spoke(here if rank < 2 else there, rank, port, size=4)

    spokes = [joined(rank) for rank in (2, 0, 3)]
    poll_until(lambda: here.present() == {0, 2, 3}, LIMIT, "the other host joins")
    spokes[0].tell(FAILED)
    second, first, third = spokes
    spokes = [first, joined(1), second, third]  # rank 1 comes late
    for rank in (0, 1, 3):
        spokes[rank].hears((2, FAILED))
    spokes[3].tell(HostName("there"))
    spokes[0].hears((3, HostName("there")))
    spokes[0].tell(Show(0))
    for rank in (1, 2, 3):
        spokes[rank].hears((0, Show(0)))
    spokes[2].close()
    poll_until(lambda: here.present() == {0, 1, 3}, LIMIT, "rank 2 has left")
    spokes[3].close(Gone("its process was killed"))
    for rank in (0, 1):
        spokes[rank].hears((3, Gone("its process was killed")))
    for spoke in (spokes[1], spokes[0]):
        spoke.close()


def test_hosts_that_leave_after_rank_0_are_not_missed(hosts: Hosts) -> None:
    """Rank 1 is on the hub's host; it works on when rank 0 has left, and rank 2's host closes its connection then."""
    here, there, port = hosts
    first, second, _ = Spoke(here, 0, port), Spoke(here, 1, port), Spoke(there, 2, port)
    poll_until(lambda: here.present() == {0, 1, 2}, LIMIT, "all have joined")
    first.close()
    poll_until(lambda: not there.is_open, LIMIT, "the other host has closed its connection")
    time.sleep(0.5)
    assert [told for told in second.received() if isinstance(told[1], Gone)] == []
    second.close()


def test_what_ranks_of_a_host_tell_as_their_last_arrives_though_they_leave_at_once(hosts: Hosts) -> None:
    class Slow(Link):
        """Its rank 1 takes long to leave, and rank 2 leaves meanwhile."""

        def deliver(self, told: Sequence[tuple[int, Message]]) -> None:
            super().deliver(told)
            if told[0] == (1, Left()):
                second.close()

    (here, _, port), there = hosts, Slow()
    hub, first, second = Spoke(here, 0, port), Spoke(there, 1, port), Spoke(there, 2, port)
    poll_until(lambda: here.present() == {0, 1, 2}, LIMIT, "all have joined")
    first.close()
    poll_until(lambda: here.present() == {0}, LIMIT, "all have left")
    assert [told for told in hub.received() if isinstance(told[1], Gone)] == []
    hub.close()


def test_a_rank_that_joins_while_the_last_one_leaves_is_on_the_link(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, port = hosts
    first, second = Spoke(here, 0, port), Spoke(there, 1, port)
    poll_until(lambda: here.present() == {0, 1}, LIMIT, "rank 1 has joined")
    late: list[Spoke] = []
    join = threading.Thread.join

    def join_late(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "link" and not late:
            late.append(Spoke(there, 2, port))
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", join_late)
    second.close()
    poll_until(lambda: here.present() == {0, 2}, LIMIT, "rank 2 has joined")
    late[0].tell(FAILED)
    first.hears((2, FAILED))
    late[0].close()
    first.close()
