"""Strangers at Horovod's rendezvous server, while the ranks use it.

mpirun -np 2 python -m runner --rendezvous file tests/programs/horovod/horovod_among_strangers.py
"""

import os
import socket
import sys

import horovod.torch as hvd
import psutil
import torch

rank = int(os.environ["RANK"])
server = (os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
NONSENSE = [
    b"\x00\xff\x16\x03\x01" * 100 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /a/b/c/d HTTP/1.1\r\n\r\n",
    b"HEAD /a/b HTTP/1.1\r\n\r\n",
    b"PUT /global/0 HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nx",
    b"PUT /global/0 HTTP/1.1\r\nContent-Length: -1\r\n\r\nx",
    b"PUT /global/0 HTTP/1.1\r\nContent-Length: much\r\n\r\nx",
    b"PUT /global/0 HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nx",
    b"PUT /global/0 HTTP/1.1\r\n\r\nx",
    b"DELETE /x HTTP/1.1\r\n\r\n",
    b"GET /global/" + b"0" * 100_000,
]


def come(words):
    visitor = socket.create_connection(server, timeout=30)
    visitor.sendall(words)
    return visitor


def answer(visitor):
    """The first line; empty where the connection was closed."""
    try:
        return visitor.recv(1 << 16).split(b"\r\n")[0]
    except ConnectionError:
        return b""


if rank == 1:
    for words in NONSENSE:
        with come(words) as visitor:
            reply = answer(visitor)
        if b" 200 " in reply:
            sys.exit(f"{words[:60]!r} was answered by {reply!r}")
    come(NONSENSE[0]).close()  # which does not wait for an answer
    slow = [come(b"PUT /global/0 HTTP/1.1\r\nContent-Length: 100\r\n\r\nslow") for _ in range(300)]
    if answer(slow[0]) not in (b"", b"HTTP/1.0 408 Request Timeout"):
        sys.exit("the first of too many connections was not closed")
hvd.init()
total = hvd.allreduce(torch.full((2,), float(rank)), op=hvd.Sum).tolist()
if rank == 0:
    listening = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    print(f"listens on {' '.join(sorted(set(listening)))}", flush=True)
print(f"rank {rank} of {hvd.size()}: {total}", flush=True)
