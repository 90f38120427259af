"""The process that serves the job's store for a program that has not imported torch."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.launching import ROOT

_PROGRAM = """
import socket, sys, threading
from types import SimpleNamespace
from runner.torchrun.store import serve_when_needed

listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
endpoint = SimpleNamespace(host="127.0.0.1", port=port, listener=listener, is_launchers=False)
sys.executable = sys.argv[1]
serve_when_needed(SimpleNamespace(endpoint=endpoint, collective_timeout=60.0))
client = socket.create_connection(("127.0.0.1", port))
for thread in threading.enumerate():
    if thread.name == "store":  # it may have ended
        thread.join()
client.close()
if sys.argv[2] == "imports":
    import torch
print(port, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("executable", "then"),
    [(sys.executable, "waits"), (sys.executable, "imports"), ("/bin/false", "imports"), ("/no/such/python", "imports")],
)
def test_the_store_is_served_beside_a_folder_called_torch(executable: str, then: str, tmp_path: Path) -> None:
    """By a process of its own, or, where that ends or cannot be started, by the program's import of torch."""
    from torch._C._distributed_c10d import TCPStore

    program = tmp_path / "scripts" / "program.py"
    program.parent.mkdir()
    program.write_text(_PROGRAM)
    source = tmp_path / "checkout" / "torch"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("raise ImportError('not built')\n")
    with subprocess.Popen(
        [sys.executable, str(program), executable, then],
        cwd=source.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=120))
            store.set("key", "value")
            assert store.get("key") == b"value"
        finally:
            process.kill()
