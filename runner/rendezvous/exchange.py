"""Values that the ranks tell each other after they have met, also when MPI or torch are what is broken.

Every rank keeps a connection to rank 0, by the socket that rank 0 holds at the endpoint. A rank that is silent or
gone holds the others up once, for as long as it was given, and never for ever.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import Any

from runner.errors import RendezvousError
from runner.rendezvous.endpoint import Endpoint
from runner.rendezvous.frames import NotOurs, pack, receive, take

_CONNECTING = 10.0  # seconds
# The others wait this much longer than rank 0, who waits for them (seconds).
_SLACK = 5.0


class Exchange:
    """One rank's side of the conversation. All ranks call ``gather`` in the same order, with the same topics."""

    def __init__(self, rank: int, size: int, endpoint: Endpoint, token: str) -> None:
        """Connect to rank 0, or wait for all others there.

        Raises:
            RendezvousError: rank 0 cannot be reached; on rank 0: some rank has not come.
        """
        self.rank, self.size = rank, size
        self.silent: set[int] = set()  # on rank 0: those that are waited for no longer
        self._connections: dict[int, socket.socket] = {}
        self._received: dict[int, bytearray] = {}
        if size == 1:
            return
        if rank == 0:
            assert endpoint.listener is not None
            visitors = _receive_all(endpoint.listener, size, token)
            self._connections = {rank: connection for rank, (connection, _) in visitors.items()}
            self._received = {rank: received for rank, (_, received) in visitors.items()}
        else:
            self._connections = {0: _connect(endpoint.door or (endpoint.host, endpoint.port), rank, token)}

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def gather(self, topic: str, value: Any, within: float, *, to_all: bool = False) -> list[Any]:
        """Every rank's value, in rank order, None for a rank that has said nothing in time.

        Args:
            topic: what it is about; of a rank that is late, what belongs to earlier topics is passed over.
            value: whatever JSON can carry, but not None.
            within: seconds that rank 0 waits for the others.
            to_all: whether ranks other than 0 are told, too; else they get an empty list.

        Raises:
            RendezvousError: rank 0 is gone or silent.
        """
        if self.rank == 0:
            values = self._collect(topic, value, within)
            self._tell_all(topic, values if to_all else [])
            return values
        connection = self._connections[0]
        try:
            connection.settimeout(within + _SLACK)
            connection.sendall(pack({"topic": topic, "value": value}))
            while True:
                answer = receive(connection)
                if answer["topic"] == topic:
                    values = answer["values"]
                    return list(values)
        except (OSError, NotOurs) as error:
            raise RendezvousError(f"rank 0 answers no more ({str(error) or 'it has ended'})") from None

    def _collect(self, topic: str, own: Any, within: float) -> list[Any]:
        found = {0: own}
        deadline = time.monotonic() + within
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
                self._take(rank, topic, found)
            while set(range(self.size)) - set(found) - self.silent and time.monotonic() < deadline:
                for key, _ in selector.select(0.1):
                    rank = key.data
                    if not self._read(rank):
                        selector.unregister(key.fileobj)
                        self.silent.add(rank)
                    self._take(rank, topic, found)
        self.silent = set(range(self.size)) - set(found)
        return [found.get(rank) for rank in range(self.size)]

    def _read(self, rank: int) -> bool:
        """Read what has come from a rank; False where it has gone."""
        try:
            piece = self._connections[rank].recv(1 << 16)
        except OSError:
            return False
        self._received[rank] += piece
        return bool(piece)

    def _take(self, rank: int, topic: str, found: dict[int, Any]) -> None:
        while True:
            complete, message = take(self._received[rank])
            if not complete:
                return
            if message["topic"] == topic:
                found[rank] = message["value"]

    def _tell_all(self, topic: str, values: list[Any]) -> None:
        answer = pack({"topic": topic, "values": values})
        for connection in self._connections.values():
            connection.settimeout(_SLACK)
            with contextlib.suppress(OSError):  # that rank is gone, and the next topic will find it silent
                connection.sendall(answer)


def _connect(door: tuple[str, int], rank: int, token: str) -> socket.socket:
    deadline = time.monotonic() + _CONNECTING
    while True:
        connection = None
        try:
            connection = socket.create_connection(door, timeout=_CONNECTING)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(pack({"token": token, "rank": rank}))
        except OSError as error:
            if connection is not None:
                connection.close()
            if time.monotonic() > deadline:
                raise RendezvousError(f"rank 0 at {door[0]}:{door[1]} cannot be reached: {error}") from None
            time.sleep(0.05)
        else:
            return connection


def _receive_all(listener: socket.socket, size: int, token: str) -> dict[int, tuple[socket.socket, bytearray]]:
    """Every other rank's connection, and what it has sent after its greeting.

    Strangers (a port scanner, another job's rank) are shown out.
    """
    deadline = time.monotonic() + _CONNECTING + _SLACK
    connections: dict[int, tuple[socket.socket, bytearray]] = {}
    greetings: dict[socket.socket, bytearray] = {}
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while len(connections) < size - 1:
                if time.monotonic() > deadline:
                    absent = ", ".join(str(rank) for rank in sorted(set(range(1, size)) - set(connections))[:8])
                    raise RendezvousError(f"rank {absent} has met the others and then not come")
                for key, _ in selector.select(0.2):
                    if key.fileobj is listener:
                        try:
                            connection, _ = listener.accept()
                        except BlockingIOError:  # it has gone again
                            continue
                        connection.setblocking(False)
                        selector.register(connection, selectors.EVENT_READ, connection)
                        greetings[connection] = bytearray()
                        continue
                    connection = key.data
                    rank = _greeted(connection, greetings[connection], token)
                    if rank is None:
                        continue
                    selector.unregister(connection)
                    received = greetings.pop(connection)
                    if rank < 0:
                        connection.close()
                    else:
                        connection.setblocking(True)
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        connections[rank] = connection, received
        finally:
            for connection in greetings:
                connection.close()
            listener.setblocking(True)
    return connections


def _greeted(connection: socket.socket, received: bytearray, token: str) -> int | None:
    """The rank that has greeted, -1 for a stranger, None as long as more has to come."""
    try:
        piece = connection.recv(4096)
        received += piece
        complete, hello = take(received, largest=4096)
        if complete and hello["token"] == token:
            return int(hello["rank"])
        return None if piece and not complete else -1
    except (OSError, NotOurs, TypeError, KeyError):
        return -1
