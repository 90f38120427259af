"""Prints in all the ways that end up in the rank's output."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from runner.launch.launcher_processes import own_process

RANK = os.environ["RANK"]
how = sys.argv[1]
if how == "ways":
    print(f"python {RANK}")
    ctypes.CDLL(None).dprintf(1, f"C {RANK}\n".encode())
    subprocess.run(["sh", "-c", f"echo child {RANK}; echo child {RANK} >&2"], check=True)
    marker = Path(sys.argv[2])
    if RANK == "0":
        marker.touch()
        time.sleep(60)
    while not marker.exists():
        time.sleep(0.02)
    os.write(1, b"x" * 50_000 + b"cut")
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "leaves-a-child":
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    Path(sys.argv[2]).write_text(str(child.pid))
    print("left", flush=True)
elif how == "terminal":
    print("terminal", sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1).columns)
    sys.stdout.write("10 %\r20 %\n")
elif how == "same-file":
    print(os.path.samestat(os.fstat(1), os.stat(sys.argv[2])))
elif how == "asks":
    sys.stdout.write("name? ")
    sys.stdout.flush()
    print(sys.stdin.readline().strip())
    print("10 %", end="\r")
    print("done")
elif how == "kills-its-proxy":
    time.sleep(1)  # until the guards have joined their link
    if RANK == "1":
        os.kill(own_process(), signal.SIGKILL)
    time.sleep(60)
elif how == "fails-once" and not (once := Path(sys.argv[2])).exists():
    print("first")
    once.touch()
    os._exit(3)
else:
    print("second")
