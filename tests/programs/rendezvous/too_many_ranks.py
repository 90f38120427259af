"""Rank 0 of 60 ranks, which may open 90 files; the other ranks connect to it from the same process."""

import contextlib
import resource
import socket
import threading

from runner.base.errors import RendezvousError
from runner.rendezvous.records.exchange import serve_records
from runner.rendezvous.records.record import RankRecord
from runner.rendezvous.transport.client import connect
from runner.rendezvous.transport.endpoint import listen

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
