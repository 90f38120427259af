"""Horovod's rendezvous server, on its guard: a process that anybody may connect to and that trains at the same time.

It asks nobody for a password (Horovod's client knows none): who gets in may read and write what the ranks tell each
other. On one host it listens on loopback, and trusts whoever is on the host. On several it takes connections only from
addresses of the job's hosts, and trusts those hosts. What else arrives is dropped without a word, in bounded time and
memory.
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

_PATIENCE = 10.0  # seconds that a visitor may take; a rank takes milliseconds
_MORE_VISITORS = 64  # at a time, beside one per rank
_BYTES_PER_RANK, _MORE_BYTES = 1 << 12, 1 << 16  # in a value: a rank's is one address, or some, for each other rank


def serve(slots: Sequence[Any], loopback: bool, may_come: Callable[[str], bool]) -> RendezvousServer:
    """Start the server in a thread, on loopback or on all addresses. ``server_port`` is its port.

    Args:
        slots: Horovod's ``SlotInfo`` of all ranks.
        may_come: whether a visitor from an address is let in; asked in the server's thread.
    """
    server = RendezvousServer(len(slots), loopback, may_come)
    server.init(slots)
    threading.Thread(target=server.serve_forever, name="horovod rendezvous", daemon=True).start()
    return server


class _Handler(RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
    def parse_request(self) -> bool:
        """Refuses what no rank asks for before Horovod's own code trusts it."""
        if not super().parse_request():
            return False
        length = self.headers.get("Content-Length", "0")
        is_sound = re.fullmatch(r"\d{1,12}", length, re.ASCII) and int(length) <= self.server.largest
        if self.command not in ("GET", "PUT", "DELETE") or self.path.count("/") != 2 or not is_sound:
            self.send_error(400)
            return False
        return True

    def _put_value(self, scope: str, key: str, value: bytes) -> None:
        if len(value) == int(self.headers["Content-Length"]):  # and not what a visitor began to say
            super()._put_value(scope, key, value)


class RendezvousServer(RendezvousHTTPServer):  # type: ignore[misc]  # Horovod has no types
    daemon_threads = True  # no visitor keeps the process from ending
    request_queue_size = 4096  # all ranks come at once

    def __init__(self, size: int, loopback: bool, may_come: Callable[[str], bool]) -> None:
        self.largest = size * _BYTES_PER_RANK + _MORE_BYTES
        self._most, self._may_come = size + _MORE_VISITORS, may_come
        self._visitors: dict[socket.socket, float] = {}  # and when they came
        super().__init__(("127.0.0.1" if loopback else "", 0), _Handler, False)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        try:
            return self._may_come(client_address[0])
        except Exception:  # the job's store is gone, and so is the job; raised in here it would end the server
            return False

    def process_request(self, request: Any, client_address: Any) -> None:
        self._visitors[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._visitors.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Show out who takes too long, and where there are too many who came first; called a few times per second."""
        visitors, now = list(self._visitors.items()), time.monotonic()
        for index, (request, since) in enumerate(visitors):
            if now - since > _PATIENCE or index < len(visitors) - self._most:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that breaks off or talks nonsense is none of the job's concern."""
