"""What a person sees: a command's output on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

from tests.launching import clean_environment
from tests.polling import LIMIT


def on_terminal(
    columns: int, *command: str, cwd: Path | None = None, timeout: float = LIMIT, **environment: str
) -> list[str]:
    """The lines that a command prints, without colours; it must end well."""
    seen = sent_to_terminal(columns, *command, cwd=cwd, timeout=timeout, **environment)
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", seen).replace("\r\n", "\n").splitlines()


def sent_to_terminal(
    columns: int, *command: str, cwd: Path | None = None, timeout: float = LIMIT, **environment: str
) -> str:
    """What a command sends to a terminal, which is its standard output; the command must end well."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in clean_environment(**environment).items() if name not in ("COLUMNS", "LINES")}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=cwd, env=kept | {"TERM": "xterm"}, stdin=subprocess.DEVNULL, stdout=theirs, stderr=errors
        )
        os.close(theirs)
        seen = bytearray()
        deadline = time.monotonic() + timeout
        try:
            while select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
                try:
                    part = os.read(ours, 65536)
                except OSError:  # EIO: all who wrote have gone
                    break
                if not part:
                    break
                seen += part
            code = process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        errors.seek(0)
        assert code == 0, f"exit code {code}\n{seen.decode()}\n{errors.read()}"
    return seen.decode()
