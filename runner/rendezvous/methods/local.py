"""Sockets of one host: by a file, and by a name that needs no folder (abstract, unix(7))."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

from runner.base.errors import RendezvousError

_CREDENTIALS = struct.Struct("3i")  # process, user and group (unix(7), SO_PEERCRED)


def named(name: str) -> str:
    """The address of a socket that all processes of a network namespace find, whichever files and folders they see."""
    return f"\0{name}"


def listen_on_name(name: str) -> socket.socket | None:
    """Listen at the address; None if the system has no such sockets, or somebody does already."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(OSError):
        listener.bind(named(name))
        listener.listen(4096)
        return listener
    listener.close()
    return None


def listen_on_file(path: Path) -> socket.socket:
    """Listen on a socket file.

    Raises:
        RendezvousError: another process does.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists() and _is_dead(path):
        path.unlink(missing_ok=True)  # left by a job that was killed
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise RendezvousError(f"another rank 0 of this job listens at {path}: {error}") from None
    listener.listen(4096)
    return listener


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return True
    return False


def is_of_another_user(connection: socket.socket) -> bool:
    """Whether the other end of a connection by name is another user's: no folder keeps others from such a name."""
    ends = [] if connection.family != socket.AF_UNIX else [connection.getsockname(), connection.getpeername()]
    if not any(isinstance(end, bytes) and end.startswith(b"\0") for end in ends):
        return False
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user != os.geteuid())
