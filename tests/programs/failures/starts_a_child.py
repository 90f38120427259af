"""Starts a process and writes its id into a file named after the rank; then waits, or fails on rank 1 once both are there.

``starts_a_child.py waits|fails``
"""

import os
import subprocess
import sys
import time
from pathlib import Path

child = subprocess.Popen(["sleep", "300"])
rank = os.environ["RANK"]
Path(f"{rank}.new").write_text(str(child.pid))
Path(f"{rank}.new").rename(f"child{rank}")
if sys.argv[1] == "fails":
    while not all(Path(f"child{other}").exists() for other in range(2)):
        time.sleep(0.1)
    if rank == "1":
        raise ValueError("boom")
time.sleep(300)
