"""Leaves a process, whose id is in a file named after the rank, and ends with code 0; or becomes another program: ``leaves_a_process.py HOW``.

HOW: fork, daemon (in a session of its own), exec (ends with code 7).
"""

import os
import sys
import time
from pathlib import Path

how, rank = sys.argv[1], os.environ["RANK"]
if how == "exec":
    os.execvp("sh", ["sh", "-c", "exit 7"])


def wait() -> None:
    for number in (0, 1, 2):
        os.close(number)
    Path(f"{rank}.new").write_text(str(os.getpid()))
    Path(f"{rank}.new").rename(f"left{rank}")
    time.sleep(300)
    os._exit(0)


if os.fork() == 0:
    if how == "daemon":
        os.setsid()
    if how == "fork" or os.fork() == 0:
        wait()
    os._exit(0)
while not Path(f"left{rank}").exists():
    time.sleep(0.05)
