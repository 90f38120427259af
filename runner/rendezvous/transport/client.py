"""A connection to rank 0, as the other ranks use it."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

from runner.rendezvous.methods.local import is_of_another_user
from runner.rendezvous.transport.protocol import ANSWER, LARGEST, Handshake, ProtocolError, Stream, greeting

_CHUNK = 1 << 20
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES)


class UnreachableError(OSError):
    """Nothing has answered at an address of the network, not even that no program listens there."""


class Client:
    """A connection to rank 0 on which both sides have proved that they belong to the job."""

    def __init__(self, connection: socket.socket, sent: Stream, received: Stream) -> None:
        self.connection = connection
        self.sent, self.received = sent, received
        self._received = bytearray()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, message: Any, within: float) -> None:
        """Send a message to rank 0 within ``within`` seconds.

        Raises:
            OSError: rank 0 has ended, or does not read.
        """
        self.connection.settimeout(within)
        self.connection.sendall(self.sent.pack(message))

    def receive(self, within: float) -> Any:
        """Wait ``within`` seconds for rank 0's next message, and return it.

        Raises:
            ProtocolError: rank 0 has closed the connection, or the message was changed on the way.
            OSError: the connection failed, or the time is over.
        """
        deadline = time.monotonic() + within
        while True:
            complete, message = self.received.take(self._received, LARGEST)
            if complete:
                return message
            self._received += _chunk(self.connection, _CHUNK, deadline)


def connect(family: socket.AddressFamily, address: Any, key: bytes, rank: int, within: float) -> Client:
    """Connect to rank 0 at this address; both sides prove that they belong to the job.

    Args:
        within: seconds.

    Raises:
        ProtocolError: another program answers there.
        WrongJobError: a runner answers that does not know the job's key.
        UnreachableError: the address cannot be reached.
        OSError: no program listens there, or it does not answer in time.
    """
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        handshake = _greeted(connection, address, key, within)
        connection.sendall(handshake.proof(rank))
    except BaseException:
        connection.close()
        raise
    return Client(connection, *handshake.streams(rank))


def answers(family: socket.AddressFamily, address: Any, key: bytes, within: float) -> bool:
    """Whether this job's rank 0 listens at an address."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            _greeted(connection, address, key, within)
    except (OSError, ProtocolError):
        return False
    return True


def _greeted(connection: socket.socket, address: Any, key: bytes, within: float) -> Handshake:
    deadline = time.monotonic() + within
    connection.settimeout(within)
    try:
        connection.connect(address)
    except OSError as error:
        if connection.family != socket.AF_UNIX and (isinstance(error, TimeoutError) or error.errno in _NO_ROUTE):
            raise UnreachableError(error.errno, error.strerror or "timed out") from None
        raise
    if is_of_another_user(connection):
        raise ProtocolError
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own = greeting()
    connection.sendall(own)
    answer = bytearray()
    while len(answer) < ANSWER:
        answer += _chunk(connection, ANSWER - len(answer), deadline)
    return Handshake(key, own, bytes(answer))


def _chunk(connection: socket.socket, size: int, deadline: float) -> bytes:
    """The next bytes. The deadline holds for the whole message: a peer that sends a byte a second does not extend it."""
    connection.settimeout(max(0.01, deadline - time.monotonic()))
    chunk = connection.recv(size)
    if not chunk:
        raise ProtocolError
    return chunk
