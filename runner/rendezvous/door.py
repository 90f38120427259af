"""Rank 0's side of all conversations over sockets: who comes, proves to be a rank of this job, and says something.

The port can be reached by others: port scanners, another job's ranks, people who mean harm. Whatever a visitor does ends
that visitor and nothing else. One who is silent is shown out after a while, or as soon as its place is needed.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

from runner.errors import RendezvousError
from runner.rendezvous.frames import GREETING, PROOF, Handshake, NotOurs, Stream

_PATIENCE = 10.0  # seconds in which a visitor proves itself
_SLOWEST = 60.0  # seconds in which a message that has begun is complete
_PIECE = 1 << 16
_AT_ONCE = 256  # visitors let in before the others are heard again
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Visitor:
    """A connection, from its first byte on."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rank: int | None = None  # once it has proved it
        self.deadline: float | None = time.monotonic() + _PATIENCE
        self.received = bytearray()
        self.handshake: Handshake | None = None
        self._to_host: Stream | None = None
        self._from_host: Stream | None = None

    def send(self, message: Any, within: float) -> bool:
        """Say something to a rank that has proved itself. Returns whether it could be said in so many seconds."""
        assert self._from_host is not None
        try:
            self.connection.settimeout(within)
            self.connection.sendall(self._from_host.pack(message))
            self.connection.setblocking(False)
        except OSError:
            return False
        return True

    def prove(self, key: bytes) -> bool:
        """Go on with the handshake as far as what has come allows. Returns whether it is done.

        Raises:
            NotOurs: the visitor is none of this job's.
            OSError: it cannot be answered.
        """
        if self.handshake is None and len(self.received) >= GREETING:
            self.handshake = Handshake(key, bytes(self.received[:GREETING]))
            del self.received[:GREETING]
            self.connection.send(self.handshake.answer)  # a new connection has room for it
        if self.handshake is None or len(self.received) < PROOF:
            return False
        self.rank = self.handshake.rank_of(bytes(self.received[:PROOF]))
        del self.received[:PROOF]
        self._to_host, self._from_host = self.handshake.streams(self.rank)
        self.deadline = None
        return True

    def take(self, largest: int) -> tuple[bool, Any]:
        """(complete, message) of what it has said.

        Raises:
            NotOurs: it is no message.
        """
        assert self._to_host is not None
        complete, message = self._to_host.take(self.received, largest)
        if complete or not self.received:
            self.deadline = None
        elif self.deadline is None:
            self.deadline = time.monotonic() + _SLOWEST
        return complete, message


class Door:
    """A listening socket, and those who have come in by it. It is blocking again, and open, when the door is closed."""

    def __init__(self, listener: socket.socket, key: bytes, size: int, largest: int) -> None:
        """Let ranks 1 to ``size`` - 1 in, with messages of so many bytes at the most."""
        self.ranks: dict[int, Visitor] = {}  # the last that has proved each rank
        self.unproved = 0  # visitors that spoke the protocol, and went without a proof
        self._listener, self._key, self._size, self._largest = listener, key, size, largest
        self._visitors: dict[Visitor, None] = {}  # oldest first
        self._selector = selectors.DefaultSelector()
        self._is_open = False
        self._looked = time.monotonic()  # for those that are late

    def __enter__(self) -> Door:
        self._is_open = True
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        for visitor in self._visitors:
            visitor.connection.close()
        self.shut()
        self._selector.close()

    def shut(self) -> None:
        """Let nobody else in, and leave the listening socket to its next use."""
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._listener)
            self._listener.setblocking(True)

    def proved(self) -> list[Visitor]:
        """All who have proved a rank, also where two have proved the same."""
        return [visitor for visitor in self._visitors if visitor.rank is not None]

    def hear(self, within: float) -> Iterator[tuple[Visitor, Any]]:
        """What ranks say, and who said it; ends when nothing has come for so many seconds, or all that has come is told.

        Raises:
            RendezvousError: this process may not open as many files as there are ranks.
        """
        events = self._selector.select(within)
        for key, _ in events:
            if key.fileobj is self._listener:
                self._let_in()
            elif key.data in self._visitors:
                yield from self._hear(key.data)
        now = time.monotonic()
        if now - self._looked > 1.0:
            self._looked = now
            for visitor in [v for v in self._visitors if v.deadline is not None and now > v.deadline]:
                self._show_out(visitor)

    def _let_in(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # nobody is left, one has gone again, or there is no room
                if error.errno in _NO_ROOM:
                    self._make_room(error)
                return
            self._watch(connection)

    def _watch(self, connection: socket.socket) -> None:
        visitor = Visitor(connection)
        try:
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, visitor)
        except OSError:
            connection.close()
            return
        self._visitors[visitor] = None

    def _make_room(self, error: OSError) -> None:
        stranger = next((visitor for visitor in self._visitors if visitor.rank is None), None)
        if stranger is not None:
            self._show_out(stranger)
        elif error.errno == errno.EMFILE:
            raise RendezvousError(
                f"rank 0 may not open as many files as {self._size} ranks need ({len(self.ranks) + 1} have met)",
                fix=f"raise the limit of {socket.gethostname()} (ulimit -Hn), or start with mpi4py and an mpirun",
            )
        else:
            time.sleep(0.05)  # the host's own shortage

    def _hear(self, visitor: Visitor) -> Iterator[tuple[Visitor, Any]]:
        try:
            piece = visitor.connection.recv(_PIECE)
            visitor.received += piece
            if visitor.rank is None and visitor.prove(self._key):
                self._enter(visitor)
            while visitor.rank is not None:
                complete, message = visitor.take(self._largest)
                if not complete:
                    break
                yield visitor, message
            if not piece:
                self._show_out(visitor)
        except BlockingIOError:
            return
        except (OSError, NotOurs):
            self._show_out(visitor)

    def _enter(self, visitor: Visitor) -> None:
        assert visitor.rank is not None
        if not 0 < visitor.rank < self._size:
            visitor.rank = None
            raise NotOurs
        self.ranks[visitor.rank] = visitor

    def _show_out(self, visitor: Visitor) -> None:
        del self._visitors[visitor]
        with contextlib.suppress(OSError, KeyError, ValueError):
            self._selector.unregister(visitor.connection)
        visitor.connection.close()
        if visitor.rank is None:
            self.unproved += visitor.handshake is not None
        elif self.ranks.get(visitor.rank) is visitor:
            del self.ranks[visitor.rank]
