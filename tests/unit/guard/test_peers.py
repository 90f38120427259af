"""What the other guards say counts for the attempt that it is about."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from runner.guard.link.link import Address, Link
from runner.guard.link.messages import Done, Failed, HostName, Hung, Message, Reason, Returned, Show, Stacks
from runner.guard.link.peers import Peers, Restarts
from runner.guard.process.events import Events
from runner.guard.report.failure import Failure
from runner.rendezvous.transport.endpoint import listen, port_of
from tests.polling import LIMIT, poll_until


class Peer:
    """A guard's view of the others, which begins attempts when it is told to."""

    def __init__(self, rank: int, listener: socket.socket | None, port: int) -> None:
        link = Link()
        link.listener = listener
        self.restarts, self.events = Restarts(9, rank, 2), Events()
        self.peers = Peers(rank, link, self.events, self.restarts)
        assert not self.peers.are_reached
        assert self.peers.join(Address(host="127.0.0.1", port=port, key="00" * 32, rank=rank, size=2), f"host {rank}")
        self.heard: list[Message] = []

    def hears(self, message: Message) -> bool:
        """Whether this message is taken now. (Asleep until there is one, as a guard.)"""
        self.events.wait_for_messages(0.1)
        self.heard += [message for _, message in self.peers.received()]
        return message in self.heard


@pytest.fixture
def pair() -> Iterator[tuple[Peer, Peer]]:
    """Rank 0's and rank 1's."""
    listener = listen(loopback=True)
    hub = Peer(0, listener, port_of(listener))
    other = Peer(1, None, port_of(listener))
    poll_until(lambda: hub.hears(HostName("host 1")), LIMIT, "rank 1 joins")
    assert hub.peers.present == {0, 1}
    yield hub, other
    other.peers.leave()
    hub.peers.leave()
    listener.close()


def of(attempt: int) -> list[Message]:
    """What may be said of an attempt, but that its ranks are not started again."""
    failure = Failure(rank=1, host="b", exit_code=70, what="hung", step=7, time=0.5, attempt=attempt)
    return [
        Failed(attempt=attempt, again=True, failure=failure),
        Returned(attempt, ""),
        Done(attempt),
        Reason("stopped", attempt=attempt),
        Show(attempt),
        Stacks(attempt, None, []),
        Hung(failure),
    ]


def test_of_another_attempt_nothing_is_taken_and_what_is_early_is_kept(pair: tuple[Peer, Peer]) -> None:
    """Such as a hang that is noticed as the ranks fail for another reason: it would end the next attempt."""
    hub, other = pair
    hub.restarts.next()
    for attempt in (0, 1, 2):
        for message in of(attempt):
            other.peers.tell(message)
    other.peers.tell(last := HostName("b"))
    poll_until(lambda: hub.hears(last), LIMIT, "all is received")
    assert [message for message in hub.heard if message in of(0) + of(2)] == []
    assert [message for message in hub.heard if message in of(1)] == of(1)
    hub.restarts.next()
    assert [message for _, message in hub.peers.received()] == of(2)
    assert hub.peers.received() == []


def test_a_rank_that_is_not_started_again_counts_in_any_attempt(pair: tuple[Peer, Peer]) -> None:
    hub, other = pair
    hub.restarts.next()
    other.peers.tell(ends := Failed(attempt=0, again=False, failure=None))
    poll_until(lambda: hub.hears(ends), LIMIT, "that a rank ends")


def test_a_job_has_ended_well_when_all_ranks_have() -> None:
    restarts = Restarts(2, rank=0, size=3)
    assert restarts.finish()
    assert not restarts.finish()
    restarts.done.add(2)
    assert restarts.unfinished() == {1}
    assert not restarts.unfinished({0, 2})  # no end of a rank behind a firewall would be known, and the job never end
    restarts.done.add(1)
    assert not restarts.unfinished()
