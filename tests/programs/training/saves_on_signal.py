"""Waits as a training loop does between its steps: SIGUSR1 saves and continues, SIGTERM ends: ``saves_on_signal.py FOLDER``."""

import os
import signal
import sys
import time
from pathlib import Path

received = []
signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
temporary = folder / f"{rank}.new"
temporary.write_text(str(os.getpid()))
temporary.rename(folder / f"{rank}.started")
for _ in range(1200):
    time.sleep(0.1)
    if received:
        (folder / f"{rank}.saved").touch()
        received.clear()
