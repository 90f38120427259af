"""The other ranks' side of a conversation with rank 0 over a socket."""

from __future__ import annotations

import socket
import time
from typing import Any

from runner.rendezvous.frames import ANSWER, LARGEST, Handshake, NotOurs, Stream, greeting

_PIECE = 1 << 20


class Line:
    """A connection on which both sides have proved to be of the job."""

    def __init__(self, connection: socket.socket, to_host: Stream, from_host: Stream) -> None:
        self.connection = connection
        self._to_host, self._from_host = to_host, from_host
        self._received = bytearray()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def say(self, message: Any, within: float) -> None:
        """Say something to rank 0, within so many seconds.

        Raises:
            OSError: rank 0 is gone, or does not listen.
        """
        self.connection.settimeout(within)
        self.connection.sendall(self._to_host.pack(message))

    def hear(self, within: float) -> Any:
        """What rank 0 says next, within so many seconds.

        Raises:
            NotOurs: rank 0 is gone, or somebody stands between.
            OSError: the connection failed, or the time is over.
        """
        deadline = time.monotonic() + within
        while True:
            complete, message = self._from_host.take(self._received, LARGEST)
            if complete:
                return message
            self._received += _piece(self.connection, _PIECE, deadline)


def visit(family: socket.AddressFamily, address: Any, key: bytes, rank: int, within: float) -> Line:
    """Connect to rank 0 at this address, and prove to one another to be of the job.

    Raises:
        NotOurs: something else answers there.
        NotOfThisJob: a runner answers that does not know the job's key.
        OSError: it cannot be reached, or does not answer in so many seconds.
    """
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        handshake = _met(connection, address, key, within)
        connection.sendall(handshake.proof(rank))
    except BaseException:
        connection.close()
        raise
    return Line(connection, *handshake.streams(rank))


def answers(family: socket.AddressFamily, address: Any, key: bytes, within: float) -> bool:
    """Whether this job's rank 0 is what listens at an address."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            _met(connection, address, key, within)
    except (OSError, NotOurs):
        return False
    return True


def _met(connection: socket.socket, address: Any, key: bytes, within: float) -> Handshake:
    deadline = time.monotonic() + within
    connection.settimeout(within)
    connection.connect(address)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own = greeting()
    connection.sendall(own)
    answer = bytearray()
    while len(answer) < ANSWER:
        answer += _piece(connection, ANSWER - len(answer), deadline)
    return Handshake(key, own, bytes(answer))


def _piece(connection: socket.socket, size: int, deadline: float) -> bytes:
    """What comes next, but not after the deadline: a peer that says one byte a second does not prolong it."""
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    piece = connection.recv(size)
    if not piece:
        raise NotOurs
    return piece
