"""Rank 0 ends this many seconds after the others: ``ends_late.py SECONDS``."""

import os
import sys
import time

time.sleep(float(sys.argv[1]) * (os.environ["RANK"] == "0"))
