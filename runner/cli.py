"""``python -m runner [OPTIONS] TARGET [ARGS...]``.

A process that a launcher starts imports no more than it needs as a proxy (guard/proxy.py); the agent of its host imports the rest.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from runner.guard.process.proxy import start


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; ends the process with the exit code that the README documents."""

    def serve(listener: socket.socket | None, first: socket.socket, kept: bytes) -> NoReturn:
        from runner.guard.process import agent
        from runner.starting.launch import Launch

        agent.serve(listener, first, kept, lambda: Launch(sys.argv[1:] if argv is None else argv))

    start(serve)
