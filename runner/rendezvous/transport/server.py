"""Rank 0's side of all connections: it accepts them, checks that each peer is a rank of this job, and reads messages.

Others can reach the port: port scanners, another job's ranks, attackers. Whatever a peer does can end its own
connection only. A silent peer is disconnected after a time limit, or as soon as its place is needed.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

from runner.base.errors import RendezvousError
from runner.rendezvous.methods.local import is_of_another_user
from runner.rendezvous.transport.protocol import GREETING, PROOF, Handshake, ProtocolError, Stream

_PROVING = 10.0  # seconds in which a peer must prove that it belongs to the job
_RECEIVING = 60.0  # seconds in which a message that has begun must be complete
_CHUNK = 1 << 16
_AT_ONCE = 256  # connections accepted before the others are read again
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Peer:
    """A connection, from its first byte on."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: int | None = None  # None until the peer has proved it
        self.deadline: float | None = time.monotonic() + _PROVING
        self.received = bytearray()
        self.handshake: Handshake | None = None
        self._received_stream: Stream | None = None
        self._sent_stream: Stream | None = None

    def send(self, *messages: Any, within: float) -> bool:
        """Send messages to a rank that has proved itself. Returns False if it does not take them within ``within`` seconds.

        One that has closed its end gets nothing. That is seen when it is received from: what it had sent before comes first.
        """
        assert self._sent_stream is not None
        rest = memoryview(b"".join([self._sent_stream.pack(message) for message in messages]))
        try:
            with contextlib.suppress(BlockingIOError):
                rest = rest[self.connection.send(rest) :]
            if rest:  # seldom: there is no room for all of it
                self._send_slowly(rest, within)
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _send_slowly(self, rest: memoryview, within: float) -> None:
        self.connection.settimeout(within)
        try:
            self.connection.sendall(rest)
        finally:
            self.connection.setblocking(False)

    def prove(self, key: bytes) -> bool:
        """Continue the handshake with the bytes received so far. Returns whether it is done.

        Raises:
            ProtocolError: the peer does not belong to this job.
            OSError: the answer cannot be sent.
        """
        if self.handshake is None and len(self.received) >= GREETING:
            self.handshake = Handshake(key, bytes(self.received[:GREETING]))
            del self.received[:GREETING]
            self.connection.send(self.handshake.answer)  # a new connection has room for it
        if self.handshake is None or len(self.received) < PROOF:
            return False
        self.rank = self.handshake.rank_of(bytes(self.received[:PROOF]))
        del self.received[:PROOF]
        self._received_stream, self._sent_stream = self.handshake.streams(self.rank)
        self.deadline = None
        return True

    def take(self, largest: int) -> tuple[bool, Any]:
        """(complete, message) from the bytes received so far.

        Raises:
            ProtocolError: they are not a message.
        """
        assert self._received_stream is not None
        complete, message = self._received_stream.take(self.received, largest)
        if complete or not self.received:
            self.deadline = None
        elif self.deadline is None:
            self.deadline = time.monotonic() + _RECEIVING
        return complete, message


class Server:
    """Listening sockets and their connections. When the server ends the sockets stay open, and are blocking again."""

    def __init__(
        self, listener: socket.socket, key: bytes, size: int, largest: int, also: Sequence[socket.socket] = ()
    ) -> None:
        """Serve ranks 1 to ``size`` - 1, whose messages have at most ``largest`` bytes, on one socket, and on others ``also``."""
        self.ranks: dict[int, Peer] = {}  # for each rank the last peer that has proved it
        self.seen: set[int] = set()  # ranks that have connected, also those that have disconnected
        self.unproved = 0  # peers that spoke the protocol and disconnected without a proof
        self._listeners, self._key, self._size, self._largest = (listener, *also), key, size, largest
        self._peers: dict[Peer, None] = {}  # oldest first
        self._selector = selectors.DefaultSelector()
        self._is_open = False
        self._looked = time.monotonic()  # when the peers' deadlines were last checked

    def __enter__(self) -> Server:
        self._is_open = True
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.connection.close()
        self.stop_accepting()
        self._selector.close()

    def stop_accepting(self) -> None:
        """Keep the connections, and release the listening socket for its next use."""
        if self._is_open:
            self._is_open = False
            for listener in self._listeners:
                self._selector.unregister(listener)
                listener.setblocking(True)

    def proved(self) -> list[Peer]:
        """All peers that have proved a rank, also if two have proved the same one."""
        return [peer for peer in self._peers if peer.rank is not None]

    def send(self, rank: int, *messages: Any, within: float) -> None:
        """Send messages to a rank that is connected. One that does not take them within ``within`` seconds is disconnected."""
        peer = self.ranks.get(rank)
        if peer is not None and not peer.send(*messages, within=within):
            self._disconnect(peer)

    def receive(self, within: float) -> Iterator[tuple[Peer, Any]]:
        """The messages that have arrived, each with its sender. Waits at most ``within`` seconds for something to arrive.

        Raises:
            RendezvousError: this process may not open as many files as there are ranks.
        """
        events = self._selector.select(within)
        for key, _ in events:
            if key.data is None:
                self._accept(cast(socket.socket, key.fileobj))
            elif key.data in self._peers:
                yield from self._read(key.data)
        now = time.monotonic()
        if now - self._looked > 1.0:
            self._looked = now
            for peer in [p for p in self._peers if p.deadline is not None and now > p.deadline]:
                self._disconnect(peer)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except OSError as error:  # none is waiting, one has disconnected, or there is no room
                if error.errno in _NO_ROOM:
                    self._make_room(error)
                return
            self._watch(connection)

    def _watch(self, connection: socket.socket) -> None:
        peer = Peer(connection)
        try:
            if is_of_another_user(connection):
                connection.close()
                return
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, peer)
        except OSError:
            connection.close()
            return
        self._peers[peer] = None

    def _make_room(self, error: OSError) -> None:
        unproved = next((peer for peer in self._peers if peer.rank is None), None)
        if unproved is not None:
            self._disconnect(unproved)
        elif error.errno == errno.EMFILE:
            raise RendezvousError(
                f"rank 0 may not open as many files as {self._size} ranks need ({len(self.ranks) + 1} have met)",
                fix=f"raise the limit of {socket.gethostname()} (ulimit -Hn), or start with mpi4py and an mpirun",
            )
        else:
            time.sleep(0.05)  # the host, not this process, is short of files or memory

    def _read(self, peer: Peer) -> Iterator[tuple[Peer, Any]]:
        try:
            chunk = peer.connection.recv(_CHUNK)
            peer.received += chunk
            if peer.rank is None and peer.prove(self._key):
                self._register(peer)
            while peer.rank is not None:
                complete, message = peer.take(self._largest)
                if not complete:
                    break
                yield peer, message
            if not chunk:
                self._disconnect(peer)
        except BlockingIOError:
            return
        except (OSError, ProtocolError):
            self._disconnect(peer)

    def _register(self, peer: Peer) -> None:
        assert peer.rank is not None
        if not 0 < peer.rank < self._size:
            peer.rank = None
            raise ProtocolError
        self.ranks[peer.rank] = peer
        self.seen.add(peer.rank)

    def _disconnect(self, peer: Peer) -> None:
        del self._peers[peer]
        with contextlib.suppress(OSError, KeyError, ValueError):
            self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.rank is None:
            self.unproved += peer.handshake is not None
        elif self.ranks.get(peer.rank) is peer:
            del self.ranks[peer.rank]
