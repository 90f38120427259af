"""A whole job, among strangers who throw nonsense at the port by which its ranks meet: it continues."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from tests.launching import RUNNER, finish, free_port, ok, path_of, start

NONSENSE = (
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack("!I", 3000) + b"[" * 3000,
    b"\xff" * 5000,
    struct.pack("<I", 2**31) + b"x" * 100,
    b"torchmpi" + os.urandom(60),
)


def test_a_job_goes_on_among_strangers(tmp_path: Path) -> None:
    """From before the ranks have met (the second comes late) until the last step: the rendezvous's port becomes the store's."""
    port = free_port()
    by_hand = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def started(rank: int) -> subprocess.Popen[str]:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        return start(*RUNNER, path_of("ddp_training"), **own, **by_hand)

    over, held = threading.Event(), list[socket.socket]()

    def attack() -> None:
        while not over.is_set():
            for sent in NONSENSE:
                with contextlib.suppress(OSError):
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=1)
                    held.append(stranger)
                    stranger.sendall(sent)
            for stranger in held[:-500]:  # most stay, and are silent from now on; the oldest go by RST
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                stranger.close()
            del held[:-500]
            time.sleep(0.05)

    first = started(0)
    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        time.sleep(2)
        second = started(1)
        ended = [finish(process) for process in (first, second)]
    finally:
        over.set()
        attacker.join()
        first.kill()
    assert sum(ok(done).stdout.count("same True") for done in ended) == 2
    assert len(held) > len(NONSENSE)
    for stranger in held:
        stranger.close()
