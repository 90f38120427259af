"""JSON messages over a stream socket: four bytes of length, then the text."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")
# A record is a few kilobytes; the answer holds one per rank. Whatever claims to be larger is not ours.
LARGEST = 1 << 28


class NotOurs(Exception):
    """What came over the socket is not a message of this protocol."""


def pack(message: Any) -> bytes:
    """The bytes of one message."""
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def receive(connection: socket.socket, largest: int = LARGEST) -> Any:
    """One message from a blocking socket.

    Raises:
        NotOurs: the peer closed early, or talks something else.
        OSError: the socket failed or timed out.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > largest:
        raise NotOurs
    try:
        return json.loads(_exactly(connection, length))
    except ValueError:
        raise NotOurs from None


def unpack(received: bytearray, largest: int) -> tuple[bool, Any]:
    """(complete, message) of what has come so far over a socket that is read piece by piece.

    Raises:
        NotOurs: it cannot become a message.
    """
    if len(received) < _LENGTH.size:
        return False, None
    (length,) = _LENGTH.unpack(received[: _LENGTH.size])
    if length > largest:
        raise NotOurs
    if len(received) < _LENGTH.size + length:
        return False, None
    try:
        return True, json.loads(received[_LENGTH.size : _LENGTH.size + length])
    except ValueError:
        raise NotOurs from None


def take(received: bytearray, largest: int = LARGEST) -> tuple[bool, Any]:
    """Like ``unpack``, and the message is taken out of what has come."""
    complete, message = unpack(received, largest)
    if complete:
        (length,) = _LENGTH.unpack(received[: _LENGTH.size])
        del received[: _LENGTH.size + length]
    return complete, message


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise NotOurs
        data += piece
    return bytes(data)
