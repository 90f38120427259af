"""Rank 0 is done at once; rank 1 stops itself in its first attempt. Nothing is exchanged."""

import os
import signal
import sys
from pathlib import Path

once = Path(sys.argv[1])
if os.environ["RANK"] == "1" and not once.exists():
    once.touch()
    os.kill(os.getpid(), signal.SIGSTOP)
