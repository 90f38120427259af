"""Rank 0 ends at once, rank 1 when SIGUSR1 has come; both have a handler for it."""

import os
import signal
import time
from pathlib import Path

received = []
signal.signal(signal.SIGUSR1, lambda *_: received.append(True))
rank = os.environ["RANK"]
Path(f"ready{rank}").touch()
end = time.monotonic() + 30
while rank == "1" and not received and time.monotonic() < end:
    time.sleep(0.1)
