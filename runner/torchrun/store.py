"""The job's store, which rank 0 serves at the endpoint."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from datetime import timedelta

from runner.job import Job
from runner.torchrun.import_hooks import when_imported
from runner.torchrun.shared_import import is_held
from runner.versions import torch_private
from runner.versions.torch_api import SERVE_SOCKET

_AT_ONCE = 1.0  # seconds
_PATIENCE = timedelta(seconds=10)
_has_served = threading.Event()
_serving = threading.Lock()
kept: list[object] = []  # until the process ends: if rank 0 dropped the store, the other ranks would lose it, too

# It ends with its parent, which a program that replaces this one by os.execv() still is. It does not import from the working
# folder, which may hold a folder called torch.
_PROCESS = """
import sys
sys.path[:] = filter(None, sys.path)
import json, os, time
from datetime import timedelta
host, port, listener, timeout, parent, more = sys.argv[1:]
from torch.distributed import TCPStore
store = TCPStore(host, int(port), is_master=True, master_listen_fd=int(listener), wait_for_workers=False,
                 timeout=timedelta(seconds=float(timeout)), **json.loads(more))
os.write(1, b"1")
while os.getppid() == int(parent):
    time.sleep(0.2)
os._exit(0)
"""


def serve_store(job: Job) -> None:
    """Serve the job's store on rank 0's held socket until the process ends. All ranks call this; only the first call counts."""
    with _serving:
        has_served = _has_served.is_set()
        _has_served.set()
        if has_served or not _is_ours(job):
            return
        assert job.endpoint.listener is not None
        store = torch_private.TCPStore(
            job.endpoint.host,
            job.endpoint.port,
            is_master=True,
            master_listen_fd=job.endpoint.listener.detach(),
            wait_for_workers=False,
            timeout=timedelta(seconds=job.collective_timeout),
            **SERVE_SOCKET,
        )
        kept.append(store)


def client_of(job: Job) -> torch_private.TCPStore:
    """A connection of its own to the job's store.

    Raises:
        RuntimeError: the store does not answer.
    """
    host, port = job.endpoint.host, job.endpoint.port
    return torch_private.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_PATIENCE)


def serve_when_needed(job: Job) -> None:
    """Serve the store for a program that may import torch later, or never. Called on all ranks.

    It is served as soon as the program imports torch. If somebody connects before it does (the other ranks, or a process that
    the program has started), a process of its own serves it: what the program does before its import stays as it is.
    """
    if _has_served.is_set() or not _is_ours(job):
        return
    program = os.getpid()

    def serve() -> None:
        if os.getpid() == program:  # not in a child that it has forked
            serve_store(job)

    when_imported("torch", serve)
    if not _has_served.is_set():
        assert job.endpoint.listener is not None
        clients = select.poll()
        clients.register(job.endpoint.listener, select.POLLIN)
        words = job, job.endpoint.listener, clients
        threading.Thread(target=_serve_first_client, args=words, name="store", daemon=True).start()


def _serve_first_client(job: Job, listener: socket.socket, clients: select.poll) -> None:
    clients.poll()
    if is_held("torch"):  # then the program's import takes milliseconds, and a process would take a second
        _has_served.wait(_AT_ONCE)
    while not _has_served.is_set():
        with _serving:
            # While the program imports torch, the client waits for the end of that: this may be any second.
            if not _has_served.is_set() and "torch" not in sys.modules:
                if not _is_served_by_process(job, listener):
                    return  # the program's import of torch serves
                listener.close()
                _has_served.set()
        _has_served.wait(0.2)


def _is_served_by_process(job: Job, listener: socket.socket) -> bool:
    """Start a process that serves the store, and wait until it does; False if it cannot."""
    where = job.endpoint.host, job.endpoint.port, listener.fileno()
    words = *where, job.collective_timeout, os.getpid(), json.dumps(SERVE_SOCKET)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for the program
        )
    except OSError:  # it cannot be started
        return False
    kept.append(process)
    assert process.stdout is not None
    return bool(process.stdout.read(1))


def _is_ours(job: Job) -> bool:
    return job.endpoint.listener is not None and not job.endpoint.is_launchers
