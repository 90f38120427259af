"""Rank 0 of 60 ranks, which may open 90 files; the other ranks connect to it from the same process."""

import contextlib
import resource
import socket
import threading

from runner.errors import RendezvousError
from runner.rendezvous.client import connect
from runner.rendezvous.endpoint import listen
from runner.rendezvous.record import RankRecord
from runner.rendezvous.record_exchange import serve_records

listener = listen(loopback=True)
clients = []


def connect_the_others() -> None:
    with contextlib.suppress(OSError):  # this process has no file left either
        for rank in range(1, 60):
            clients.append(connect(socket.AF_INET, listener.getsockname(), b"key", rank, 10.0))


threading.Thread(target=connect_the_others, daemon=True).start()
resource.setrlimit(resource.RLIMIT_NOFILE, (90, 90))  # both ends of a connection count here
try:
    serve_records(listener, RankRecord(rank=0), 60, b"key", 20.0)
except RendezvousError as error:
    print(error)
