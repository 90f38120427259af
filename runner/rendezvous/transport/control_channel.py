"""Gather values from all ranks after the rendezvous, without MPI or torch, which may be what is broken.

Every rank keeps a connection to rank 0, through the socket that rank 0 holds at the endpoint. A rank that is silent or
has ended delays the others once, by the time limit at most.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import Any

from runner.base.errors import RendezvousError
from runner.rendezvous.records.topology import ranks_text
from runner.rendezvous.transport.client import Client, connect
from runner.rendezvous.transport.endpoint import Endpoint
from runner.rendezvous.transport.protocol import LARGEST, ProtocolError, text_of
from runner.rendezvous.transport.secret import derived
from runner.rendezvous.transport.server import Server

_CONNECTING = 10.0  # seconds
# The other ranks wait this much longer than rank 0, which waits for them (seconds).
_SLACK = 5.0


class ControlChannel:
    """A rank's side of the channel. All ranks call ``gather`` in the same order, with the same topics."""

    def __init__(self, rank: int, size: int, endpoint: Endpoint, purpose: str) -> None:
        """Connect to rank 0, or wait for all others there.

        Raises:
            RendezvousError: rank 0 cannot be reached; on rank 0: some rank has not connected.
        """
        self.rank, self.size = rank, size
        self.silent: set[int] = set()  # on rank 0: ranks that it no longer waits for
        self._inbox: dict[int, list[Any]] = {}  # by rank: messages received and not read yet
        self._stack = ExitStack()
        if size == 1:
            return
        key = derived(endpoint.key, purpose)
        if rank == 0:
            assert endpoint.listener is not None
            self._server = self._stack.enter_context(Server(endpoint.listener, key, size, LARGEST))
            self._wait_for_all()
        else:
            address = endpoint.rank_0 or (endpoint.host, endpoint.port)
            self._client = self._stack.enter_context(_connect(address, key, rank))

    def __enter__(self) -> ControlChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def gather(self, topic: str, value: Any, within: float, *, to_all: bool = False) -> list[Any]:
        """Every rank's value, in rank order, None for a rank that has sent nothing in time.

        Args:
            topic: names this call; late values of earlier topics are dropped.
            value: whatever JSON can carry, but not None.
            within: seconds that rank 0 waits for the others.
            to_all: whether ranks other than 0 get the values, too; otherwise they get an empty list.

        Raises:
            RendezvousError: rank 0 has ended or is silent.
        """
        if self.size == 1:
            return [value]
        if self.rank == 0:
            values = self._collect(topic, value, within)
            answer = text_of({"topic": topic, "values": values if to_all else []})
            for peer in list(self._server.ranks.values()):  # a rank that has ended is silent at the next topic
                peer.send(answer, within=_SLACK)
            return values
        deadline = time.monotonic() + within + _SLACK
        try:
            self._client.send({"topic": topic, "value": value}, within + _SLACK)
            while True:
                answer = self._client.receive(deadline - time.monotonic())
                if answer["topic"] == topic:
                    return list(answer["values"])
        except (OSError, ProtocolError) as error:
            raise RendezvousError(f"rank 0 answers no more ({str(error) or 'it has ended'})") from None

    def _collect(self, topic: str, own: Any, within: float) -> list[Any]:
        found = {0: own}
        deadline = time.monotonic() + within
        while True:
            for rank, messages in self._inbox.items():
                found.update((rank, message["value"]) for message in messages if message["topic"] == topic)
                messages.clear()  # drops those of earlier topics
            waited_for = set(self._server.ranks) - set(found) - self.silent
            if not waited_for or time.monotonic() > deadline:
                break
            self._receive()
        self.silent = set(range(self.size)) - set(found)
        return [found.get(rank) for rank in range(self.size)]

    def _receive(self) -> None:
        for peer, message in self._server.receive(0.1):
            if peer.rank is not None and isinstance(message, dict) and {"topic", "value"} <= set(message):
                self._inbox.setdefault(peer.rank, []).append(message)

    def _wait_for_all(self) -> None:
        deadline = time.monotonic() + _CONNECTING + _SLACK
        while len(self._server.seen) < self.size - 1:  # a rank that has connected and ended counts
            if time.monotonic() > deadline:
                absent = sorted(set(range(1, self.size)) - self._server.seen)
                self._stack.close()
                raise RendezvousError(f"{ranks_text(absent[:8])} has met the others and then not come")
            self._receive()
        self._server.stop_accepting()  # the socket may become the store


def _connect(address: tuple[str, int], key: bytes, rank: int) -> Client:
    deadline = time.monotonic() + _CONNECTING
    while True:
        try:
            family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
            return connect(family, address, key, rank, max(0.1, deadline - time.monotonic()))
        except (OSError, ProtocolError) as error:
            if time.monotonic() > deadline:
                reason = str(error) or "something else answers there"
                raise RendezvousError(f"rank 0 at {address[0]}:{address[1]} cannot be reached: {reason}") from None
            time.sleep(0.05)
