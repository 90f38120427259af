"""After a failure of a launch by `supervise`: wait for its next one, which can take over what this one's importer has imported."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from runner.base.environment import replace_variables
from runner.base.errors import EXIT_OK, EXIT_REQUEUE, EXIT_USAGE
from runner.guard.process.importer import Importer
from runner.guard.process.wire import accept_own, receive, send

_FINAL = {EXIT_OK, EXIT_USAGE, EXIT_REQUEUE}  # exit codes after which `supervise` does not start the job again
_KEPT = 4.0  # seconds after a failed attempt of `supervise` in which its next one has to come
_HANDING_OVER = 5.0  # seconds for what a proxy has begun to send


class NextLaunch(NamedTuple):
    """The connection to its elected proxy, and the socket to which the others connect."""

    connection: socket.socket
    listener: socket.socket


def may_start_again(codes: set[int]) -> bool:
    """Whether `supervise` may start a job again whose ranks have ended with these exit codes."""
    return bool(codes - _FINAL)


def wait_for_launch(
    name: bytes, importer: Importer, inherited: set[int], hear: Callable[[Importer], bool]
) -> NextLaunch | None:
    """Wait for a launch by this name, and take its command line and variables. None: it has not come.

    Args:
        inherited: what the last launch has opened for its elected rank.
        hear: takes what the importer tells; returns whether it is there still.
    """
    end, is_there = time.monotonic() + _KEPT, True
    with socket.socket(socket.AF_UNIX) as kept, contextlib.suppress(OSError):  # another one has the name
        for number in inherited:  # Hydra waits until no process has its pipes
            os.close(number)
        importer.start({"close": list(inherited)}, ())
        kept.bind(name)
        kept.listen()
        kept.setblocking(False)
        poll = select.poll()
        poll.register(kept, select.POLLIN)
        told = importer.connection.fileno()
        poll.register(told, select.POLLIN)
        while is_there and (left := end - time.monotonic()) > 0:
            ready = {number for number, _ in poll.poll(1000 * left)}
            is_there = told not in ready or hear(importer)
            for connection in accept_own(kept) if kept.fileno() in ready else ():
                if (launch := _take(connection)) is not None:
                    return launch
    return None


def _take(connection: socket.socket) -> NextLaunch | None:
    told = None
    connection.settimeout(_HANDING_OVER)
    with contextlib.suppress(OSError):
        send(connection, {"agent": os.getpid()})
        told = receive(connection)
    if told is None:
        connection.close()
        return None
    connection.settimeout(None)
    message, (number,) = told
    listener = socket.socket(fileno=number)
    listener.setblocking(False)
    sys.argv, sys.orig_argv = message["argv"], message["orig_argv"]
    replace_variables(message["environment"])
    return NextLaunch(connection, listener)
