"""Holds 3000 silent connections to a server until its input ends, and is a rank meanwhile: ``idle_connections.py PORT KEY``."""

import resource
import socket
import sys

from runner.rendezvous.transport.client import connect

address, key = ("127.0.0.1", int(sys.argv[1])), bytes.fromhex(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
held = [socket.create_connection(address, timeout=60) for _ in range(3000)]
with connect(socket.AF_INET, address, key, 1, 20.0) as client:
    client.send("hello", 20.0)
    print(f"{len(held)} idle, a rank receives {client.receive(20.0)}", flush=True)
sys.stdin.read()
