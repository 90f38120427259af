"""Messages between the processes of a job on one host, over a Unix socket, and file descriptors beside them.

They are written by ``marshal``: both ends are of one user and one Python, and a proxy has no other import for it.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("=I")
_CREDENTIALS = struct.Struct("=iii")  # process, user and group
_MOST = 16  # descriptors beside a message
_AT_ONCE = 256  # connections taken before the caller does something else: others can make more as fast as it takes them


def process_of(connection: socket.socket) -> tuple[int, int]:
    """The process on the other side of a Unix socket, and its user; of a listener the one that has made it."""
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(option)[:2]


def accept_own(listener: socket.socket) -> list[socket.socket]:
    """Take connections that wait at a non-blocking listener, and close those of other users before anything is read."""
    found = []
    with contextlib.suppress(OSError):  # there are no more, or there is no room for one
        for _ in range(_AT_ONCE):
            connection, _ = listener.accept()
            if process_of(connection)[1] == os.geteuid():  # others can see the name, too
                found.append(connection)
            else:
                connection.close()
    return found


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message; the other side gets descriptors of its own for the same files.

    Raises:
        OSError: the other side has gone.
    """
    content = marshal.dumps(message)
    content = _LENGTH.pack(len(content)) + content
    sent = socket.send_fds(connection, [content], descriptors) if descriptors else 0
    connection.sendall(memoryview(content)[sent:])


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Wait for a message. Returns it and its descriptors; None if the other side has gone.

    Raises:
        OSError: the connection is broken, or its time limit is over.
    """
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST, socket.MSG_CMSG_CLOEXEC)
    if not head:
        return None
    content = _exactly(connection, _LENGTH.size - len(head), head)
    if content is None:
        return None
    content = _exactly(connection, _LENGTH.unpack(content)[0])
    return None if content is None else (marshal.loads(content), descriptors)  # noqa: S302  # of this user's own process


def _exactly(connection: socket.socket, size: int, content: bytes = b"") -> bytes | None:
    chunks = [content]
    while size:
        chunk = connection.recv(min(size, 1 << 20))
        if not chunk:
            return None
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
