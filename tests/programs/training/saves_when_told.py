"""Trains until SIGUSR1 or a file tells it to save, and ends: ``saves_when_told.py FOLDER [FILE]``."""

import os
import signal
import sys
import time
from pathlib import Path

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
told = []
if len(sys.argv) == 2:
    signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
(folder / f"{rank}.started").touch()
while not told and not (len(sys.argv) > 2 and Path(sys.argv[2]).exists()):
    time.sleep(0.05)
time.sleep(0.3)  # the checkpoint
(folder / f"{rank}.saved").touch()
