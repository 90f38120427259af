"""Rank 0 is done at once. Rank 1 fails once rank 0's program has ended; rank 2 works on. They take the folder."""

import os
import sys
import time
from pathlib import Path

rank, left = os.environ["RANK"], Path(sys.argv[1]) / "left"
if rank == "0":
    left.write_text(str(os.getpid()))
    sys.exit()
while rank == "1" and not (left.exists() and left.read_text()):
    time.sleep(0.02)
while rank == "1" and Path(f"/proc/{left.read_text()}").exists():
    time.sleep(0.02)
if rank == "1":
    time.sleep(1)  # in which the process above rank 0's program would end, too
    raise ValueError("odd")
time.sleep(300)
