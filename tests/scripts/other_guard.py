"""Another guard of a job of three ranks, which tells that its rank has failed: ``other_guard.py PORT KEY RANK``."""

import os
import sys
import time

from runner.guard.line import Address, Line

port, key, rank = sys.argv[1:]
line = Line(Address(host="127.0.0.1", port=int(port), key=key, rank=int(rank), size=3), None, os.pipe()[1])
line.tell({"failed": 3})
time.sleep(60)
