"""Starts a process, writes its id into a file named after the rank, and waits."""

import os
import subprocess
import time
from pathlib import Path

child = subprocess.Popen(["sleep", "300"])
rank = os.environ["RANK"]
Path(f"{rank}.new").write_text(str(child.pid))
Path(f"{rank}.new").rename(f"child{rank}")
time.sleep(300)
