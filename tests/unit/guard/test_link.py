"""The link between the agents: what is told of one rank, all others receive; who leaves or is gone."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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


class Spoke:
    """A rank's end of its agent's link. ``wake``: called for each message."""

    def __init__(self, link: Link, address: Address, wake: Callable[[], object] = bool) -> None:
        self.link, self.rank, self.wake = link, address.rank, wake
        self.arrived: list[tuple[int, Message]] = []
        link.join(address, self.deliver)

    def deliver(self, told: Sequence[tuple[int, Message]]) -> None:
        self.arrived += told
        if told:
            self.wake()

    def received(self) -> list[tuple[int, Message]]:
        """What has come since the last call."""
        found = list(self.arrived)
        del self.arrived[: len(found)]
        return found

    def tell(self, message: Message) -> None:
        self.link.tell(self.rank, message)

    def hears(self, told: tuple[int, Message]) -> None:
        """Wait for a message, after the rank that tells it."""
        poll_until(lambda: told in self.received(), LIMIT, f"rank {self.rank} is told of {told}")

    def close(self, last: Message = LEFT) -> None:
        self.link.leave(self.rank, last)


class End:
    """A rank's, and the pipe by which it wakes its guard."""

    def __init__(self, rank: int, listener: socket.socket | None, port: int, host: str = "127.0.0.1") -> None:
        self.port = port
        self.pipe, wake = os.pipe()
        link = Link()
        link.listener = listener
        address = Address(host=host, port=port, key=KEY, rank=rank, size=3)
        self.spoke = Spoke(link, address, lambda: os.write(wake, b"l"))

    def receive(self, kind: type[Kind]) -> tuple[int, Kind]:
        """Wait for a message of this kind, as the guard does: asleep until the pipe has a byte."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not select.select([self.pipe], [], [], 1)[0]:
                continue
            os.read(self.pipe, 100)
            for rank, message in self.spoke.received():
                if isinstance(message, kind):
                    return rank, message
        raise AssertionError("it was not received")


@pytest.fixture
def ends() -> Iterator[list[End]]:
    """Those of three ranks."""
    listener = listen(loopback=True)
    port = port_of(listener)
    made = [End(rank, listener if rank == 0 else None, port) for rank in range(3)]
    yield made
    for end in reversed(made):
        end.spoke.close()
    listener.close()


@pytest.mark.parametrize("rank", range(3))
def test_what_one_tells_all_others_receive(rank: int, ends: list[End]) -> None:
    ends[rank].spoke.tell(FAILED)
    for other in ends:
        if other is not ends[rank]:
            assert other.receive(Failed) == (rank, FAILED)
    assert ends[rank].spoke.received() == []


def test_a_message_to_the_hub_goes_no_further(ends: list[End]) -> None:
    ends[1].spoke.tell(Stacks(0, "x", []))
    ends[1].spoke.tell(FAILED)
    assert ends[0].receive(Stacks) == (1, Stacks(0, "x", []))
    assert ends[2].receive(object) == (1, FAILED)


def test_a_message_that_nobody_knows_is_left_out(ends: list[End]) -> None:
    """As one of another version, which doctor lets take part."""
    for rank in (1, 0):
        ends[rank].spoke.tell(make_dataclass("Unknown", [])())
        ends[rank].spoke.tell(FAILED)
        for other in ends:
            if other is not ends[rank]:
                assert other.receive(object) == (rank, FAILED)


def test_who_leaves_is_not_missed_and_who_is_gone_is(ends: list[End]) -> None:
    ends[1].spoke.close()
    command = [sys.executable, path_of("other_guard"), str(ends[1].port), KEY, "1"]
    with subprocess.Popen(command) as process:
        assert ends[2].receive(Failed)[0] == 1
        process.kill()
    for end in (ends[0], ends[2]):
        assert end.receive(Gone) == (1, Gone("its host's agent has ended, with the host or by a signal"))


def test_the_hub_that_leaves_is_not_missed(ends: list[End]) -> None:
    for end in ends[1:]:
        end.spoke.tell(Show(0))
        assert ends[0].receive(Show)
    ends[0].spoke.close()
    poll_until(lambda: not ends[1].spoke.link.is_open and not ends[2].spoke.link.is_open, LIMIT, "the link is closed")
    assert [told for end in ends for told in end.spoke.received() if isinstance(told[1], Gone)] == []


def test_a_hub_that_may_open_no_more_files_keeps_its_connections(
    ends: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    poll_until(lambda: ends[0].spoke.link.present() == {0, 1, 2}, LIMIT, "all have joined")
    refused = threading.Event()

    def accept(*_: object) -> None:
        refused.set()
        raise RendezvousError("too many open files")

    monkeypatch.setattr(Server, "_accept", accept)
    with socket.create_connection(("127.0.0.1", ends[0].port)):
        assert refused.wait(LIMIT)
    ends[1].spoke.tell(FAILED)
    for other in (ends[0], ends[2]):
        assert other.receive(Failed) == (1, FAILED)


def test_a_guard_that_does_not_reach_rank_0s_says_so() -> None:
    end = End(1, None, 1, host="no-such-host.invalid")
    assert end.receive(Apart)[1].why.startswith("no-such-host.invalid:1: ")
    assert not end.spoke.link.is_open


def test_ranks_of_a_host_share_a_connection_and_each_is_told_what_concerns_it() -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on another, whose agent is killed."""
    listener = listen(loopback=True)
    port = port_of(listener)
    here, there = Link(), Link()
    here.listener = listener

    def joined(rank: int) -> Spoke:
        address = Address(host="127.0.0.1", port=port, key=KEY, rank=rank, size=4)
        return Spoke(here if rank < 2 else there, address)

    spokes = [joined(rank) for rank in (2, 0, 3)]
    poll_until(lambda: here.present() == {0, 2, 3}, LIMIT, "the other host joins")
    spokes[0].tell(FAILED)
    second, first, third = spokes
    spokes = [first, joined(1), second, third]  # rank 1 comes late
    for rank in (0, 1, 3):
        spokes[rank].hears((2, FAILED))
    spokes[3].tell(HostName("there"))
    poll_until(lambda: (3, HostName("there")) in spokes[0].received(), LIMIT, "rank 0 is told")
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
    listener.close()


def test_hosts_that_leave_after_rank_0_are_not_missed() -> None:
    """Rank 1 is on the hub's host; it works on when rank 0 has left, and rank 2's host closes its connection then."""
    listener = listen(loopback=True)
    port = port_of(listener)
    here, there = Link(), Link()
    here.listener = listener

    def joined(link: Link, rank: int) -> Spoke:
        return Spoke(link, Address(host="127.0.0.1", port=port, key=KEY, rank=rank, size=3))

    first, second = joined(here, 0), joined(here, 1)
    joined(there, 2)
    poll_until(lambda: here.present() == {0, 1, 2}, LIMIT, "all have joined")
    first.close()
    poll_until(lambda: not there.is_open, LIMIT, "the other host has closed its connection")
    time.sleep(0.5)
    assert [told for told in second.received() if isinstance(told[1], Gone)] == []
    second.close()


def test_what_ranks_of_a_host_tell_as_their_last_arrives_though_they_leave_at_once() -> None:
    class Slow(Link):
        """Its rank 1 takes long to leave, and rank 2 leaves meanwhile."""

        def deliver(self, told: Sequence[tuple[int, Message]]) -> None:
            super().deliver(told)
            if told[0] == (1, Left()):
                second.close()

    listener = listen(loopback=False)
    here, there = Link(), Slow()
    here.listener = listener
    link = {0: here, 1: there, 2: there}
    address = {rank: Address(host="127.0.0.1", port=port_of(listener), key=KEY, rank=rank, size=3) for rank in link}
    hub, first, second = (Spoke(link[rank], address[rank]) for rank in link)
    poll_until(lambda: here.present() == {0, 1, 2}, LIMIT, "all have joined")
    first.close()
    poll_until(lambda: here.present() == {0}, LIMIT, "all have left")
    assert [told for told in hub.received() if isinstance(told[1], Gone)] == []
    hub.close()


def test_a_rank_that_joins_while_the_last_one_leaves_is_on_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen(loopback=False)
    port = port_of(listener)
    here, there = Link(), Link()
    here.listener = listener
    first = Spoke(here, Address(host="127.0.0.1", port=port, key=KEY, rank=0, size=3))
    second = Spoke(there, Address(host="127.0.0.1", port=port, key=KEY, rank=1, size=3))
    poll_until(lambda: here.present() == {0, 1}, LIMIT, "rank 1 has joined")
    late: list[Spoke] = []
    join = threading.Thread.join

    def join_late(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "link" and not late:
            late.append(Spoke(there, Address(host="127.0.0.1", port=port, key=KEY, rank=2, size=3)))
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", join_late)
    second.close()
    poll_until(lambda: here.present() == {0, 2}, LIMIT, "rank 2 has joined")
    late[0].tell(FAILED)
    poll_until(lambda: (2, FAILED) in first.received(), LIMIT, "what it tells arrives")
    late[0].close()
    first.close()
