"""Horovod's rendezvous server, hardened: anybody may connect to it, and it runs in a process that trains.

It has no authentication (Horovod's client supports none): an accepted client may read and write what the ranks exchange.
On one host it listens on loopback, and trusts all users of that host. On several it accepts connections only from
addresses of the job's hosts, and trusts those hosts. All others are dropped silently, in bounded time and memory.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

_PATIENCE = 10.0  # seconds that a connection may last; a rank takes milliseconds
_MORE_CONNECTIONS = 64  # connections at a time, in addition to one per rank
_BYTES_PER_RANK, _MORE_BYTES = 1 << 12, 1 << 16  # limits of a value, which holds a few addresses for each other rank


def serve(slots: Sequence[Any], loopback: bool, is_allowed: Callable[[str], bool]) -> RendezvousServer:
    """Start the server in a thread, on loopback or on all addresses. ``server_port`` is its port.

    Args:
        slots: Horovod's ``SlotInfo`` of all ranks.
        is_allowed: whether connections from an address are accepted; called in the server's thread.
    """
    server = RendezvousServer(len(slots), loopback, is_allowed)
    server.init(slots)
    threading.Thread(target=server.serve_forever, name="horovod rendezvous", daemon=True).start()
    return server


class _Handler(RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
    def parse_request(self) -> bool:
        """Refuse requests that no rank sends, before Horovod's own code trusts them."""
        if not super().parse_request():
            return False
        length = self.headers.get("Content-Length", "0")
        is_sound = re.fullmatch(r"\d{1,12}", length, re.ASCII) and int(length) <= self.server.largest
        if self.command not in ("GET", "PUT", "DELETE") or self.path.count("/") != 2 or not is_sound:
            self.send_error(400)
            return False
        return True

    def _put_value(self, scope: str, key: str, value: bytes) -> None:
        if len(value) == int(self.headers["Content-Length"]):  # not a request that was broken off
            super()._put_value(scope, key, value)


class RendezvousServer(RendezvousHTTPServer):  # type: ignore[misc]  # Horovod has no types
    daemon_threads = True  # no connection keeps the process from ending
    request_queue_size = 4096  # all ranks connect at once

    def __init__(self, size: int, loopback: bool, is_allowed: Callable[[str], bool]) -> None:
        self.largest = size * _BYTES_PER_RANK + _MORE_BYTES
        self._most, self._is_allowed = size + _MORE_CONNECTIONS, is_allowed
        self._connections: dict[socket.socket, float] = {}  # with the time of their connection
        super().__init__(("127.0.0.1" if loopback else "", 0), _Handler, False)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        try:
            return self._is_allowed(client_address[0])
        except Exception:  # the store has ended with the job; an exception here would end the server
            return False

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Disconnect clients that take too long, and the oldest if there are too many; called a few times per second."""
        connections, now = list(self._connections.items()), time.monotonic()
        for index, (request, since) in enumerate(connections):
            if now - since > _PATIENCE or index < len(connections) - self._most:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early or send invalid requests."""
